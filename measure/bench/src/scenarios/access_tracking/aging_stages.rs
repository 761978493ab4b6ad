//! Without `-p`: KVM's stages. Memory is populated, read and written, idle and used again, and after each stage the
//! ager has to tell pages that were used from pages that were not: 90% of either, says the kernel's test, since a TLB may
//! hide an access.

use super::aging_flags::AccessTracking;
use super::aging_flags::{Guard, TrackedMemory};
use crate::scenarios::access_tracking::aging_flags::{Way, pass, youngest};
use crate::scenarios::threads_prelude::*;
use crate::threads::guest_memory::arena;

/// Of the pages that were used, and of those that were not, this many percent must be taken for what they are.
const RIGHT: u64 = 90;

impl AccessTracking {
    pub(super) fn stages(&self, report: &mut Report, runs: u32) -> Result<(), Error> {
        for &vcpus in &self.vcpus {
            let memory = self.memory(vcpus);
            let arena = arena(memory.bytes(), vcpus.into())?;
            let mut stages = Vec::new();
            for _ in 0..runs {
                let world = TrackedMemory::new(&arena, Guard::SLAT, memory, self.lru)?;
                let (times, checks) = (&mut stages, &mut report.checks);
                Run { world: &world, lru: self.lru, vcpus, times, checks }.all()?;
            }
            let params = params! { "vcpus": vcpus, "pages": memory.pages().len() };
            let row = |(stage, all)| Row::alone(stage, params.clone(), "ms", &Series::new(all));
            report.rows.extend(stages.into_iter().map(row));
        }
        Ok(())
    }
}

struct Run<'w> {
    world: &'w TrackedMemory,
    lru: bool,
    vcpus: u32,
    /// Of each stage, in every round.
    times: &'w mut Vec<(&'static str, Vec<f64>)>,
    checks: &'w mut Vec<Check>,
}

/// The half of the pages that a stage uses; KVM's test uses all or none.
fn used(gfn: Gfn) -> bool {
    gfn.0.is_multiple_of(2)
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), Error> {
        self.sweep("populating memory", Access::Write, |_| true)?;
        self.sweep("writing to populated memory", Access::Write, |_| true)?;
        self.sweep("reading from populated memory", Access::Read, |_| true)?;
        self.expect("everything was used", |_| true)?;
        self.expect("nothing was used", |_| false)?;
        self.sweep("writing to idle memory", Access::Write, |_| true)?;
        self.expect("everything was written", |_| true)?;
        self.sweep("reading from idle memory", Access::Read, |_| true)?;
        self.expect("everything was read", |_| true)?;
        self.sweep("reading every second page", Access::Read, used)?;
        self.expect("every second page was read", used)
    }

    fn sweep(
        &mut self,
        name: &'static str,
        access: Access,
        which: impl Fn(Gfn) -> bool + Sync,
    ) -> Result<(), Error> {
        let ms = self.world.sweep(access, which)?;
        self.took(name, ms);
        Ok(())
    }

    /// Asks, and compares with what was `used` since the question before.
    fn expect(&mut self, name: &str, used: impl Fn(Gfn) -> bool) -> Result<(), Error> {
        let idle = &mut idle()?;
        let began = Instant::now();
        let is_young: Vec<bool> = if self.lru { self.by_generation(idle)? } else { self.by_bits(idle) };
        self.took("asking", began.elapsed().as_secs_f64() * 1e3);
        // Of those that were used, and of those that were not: how many there are, how many were taken for it.
        let mut counts = [[0u64; 2]; 2];
        for (gfn, young) in self.pages().zip(is_young) {
            let count = &mut counts[usize::from(used(gfn))];
            count[0] += 1;
            count[1] += u64::from(young == used(gfn));
        }
        let ok = counts.iter().all(|[all, right]| right * 100 >= all * RIGHT);
        let detail = format!(
            "right: {} of {} in use, {} of {} idle",
            counts[1][1], counts[1][0], counts[0][1], counts[0][0]
        );
        Check { name: format!("{} vCPUs: {name}", self.vcpus), ok, detail }.add_to(self.checks);
        Ok(())
    }

    fn took(&mut self, stage: &'static str, ms: f64) {
        match self.times.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, all)) => all.push(ms),
            None => self.times.push((stage, vec![ms])),
        }
    }

    fn pages(&self) -> impl Iterator<Item = Gfn> + use<> {
        gfns(self.world.pages())
    }

    /// A page is in use where a pass puts it into the generation that the pass ends. Generations must advance.
    fn by_generation(&mut self, idle: &mut Idle) -> Result<Vec<bool>, Error> {
        let before = youngest(self.world);
        pass(self.world, idle, Way::Generations).map_err(Error::Machine)?;
        let after = youngest(self.world);
        let detail = format!("{before}, then {after}");
        let name = format!("{} vCPUs: generations advance", self.vcpus);
        Check { name, ok: after == before + 1, detail }.add_to(self.checks);
        let generation = |gfn| self.world.space.generation(hva_of(gfn));
        Ok(self.pages().map(|gfn| generation(gfn).is_some_and(|seq| seq >= before)).collect())
    }

    fn by_bits(&self, idle: &mut Idle) -> Vec<bool> {
        let young = |gfn| {
            let hvas = Span::sized(hva_of(gfn), PAGE_SIZE);
            self.world.space.young(idle, hvas, Young::Clear)
        };
        self.pages().map(young).collect()
    }
}
