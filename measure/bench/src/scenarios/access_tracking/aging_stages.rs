//! Without `-p`: KVM's stages. Memory is populated, read and written, idle and used again, and after each stage the
//! ager has to tell pages that were used from pages that were not: 90% of either, says the kernel's test, since a TLB may
//! hide an access.

use super::aging_flags::{AccessTracking, SLAT, TrackedMemory, Way, pass, youngest};
use crate::scenarios::threads_prelude::*;

/// Of the pages that were used, and of those that were not, this many percent must be taken for what they are.
const RIGHT: u64 = 90;

/// A stage: guests go over the pages of which `uses` says so; or the ager has to find those in use, and no others.
type Stage = (&'static str, Option<Access>, fn(Gfn) -> bool);

const EVERY: fn(Gfn) -> bool = |_| true;
/// The half of the pages that a stage uses; KVM's test uses all or none.
const HALF: fn(Gfn) -> bool = |gfn| gfn.0.is_multiple_of(2);

const STAGES: [Stage; 11] = [
    ("populating memory", Some(Access::Write), EVERY),
    ("writing to populated memory", Some(Access::Write), EVERY),
    ("reading from populated memory", Some(Access::Read), EVERY),
    ("everything was used", None, EVERY),
    ("nothing was used", None, |_| false),
    ("writing to idle memory", Some(Access::Write), EVERY),
    ("everything was written", None, EVERY),
    ("reading from idle memory", Some(Access::Read), EVERY),
    ("everything was read", None, EVERY),
    ("reading every second page", Some(Access::Read), HALF),
    ("every second page was read", None, HALF),
];

impl AccessTracking {
    pub(super) fn stages(&self, report: &mut Report, runs: u32) -> Result<()> {
        for &vcpus in &self.vcpus {
            let memory = self.memory(vcpus);
            let arena = arena(memory.bytes(), vcpus.into())?;
            let mut times: Vec<(&str, Vec<f64>)> = Vec::new();
            for _ in 0..runs {
                let world = TrackedMemory::new(&arena, SLAT, memory, self.lru)?;
                let mut run = Run { world: &world, lru: self.lru, vcpus, checks: &mut report.checks };
                for (name, access, uses) in STAGES {
                    let (stage, ms) = match access {
                        Some(access) => (name, world.sweep(access, uses)?),
                        None => ("asking", run.expect(name, uses)?),
                    };
                    match times.iter_mut().find(|(name, _)| *name == stage) {
                        Some((_, all)) => all.push(ms),
                        None => times.push((stage, vec![ms])),
                    }
                }
            }
            let params = params! { "vcpus": vcpus, "pages": memory.pages().len() };
            let row = |(stage, all)| Row::alone(stage, params.clone(), "ms", &Series::new(all));
            report.rows.extend(times.into_iter().map(row));
        }
        Ok(())
    }
}

struct Run<'w> {
    world: &'w TrackedMemory,
    lru: bool,
    vcpus: u32,
    checks: &'w mut Vec<Check>,
}

impl Run<'_> {
    /// Asks, and compares with what was `used` since the question before. Milliseconds that the answer took.
    fn expect(&mut self, name: &str, used: fn(Gfn) -> bool) -> Result<f64> {
        let idle = &mut idle()?;
        let began = Instant::now();
        let is_young: Vec<bool> = if self.lru { self.by_generation(idle)? } else { self.by_bits(idle) };
        let ms = began.elapsed().as_secs_f64() * 1e3;
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
        Ok(ms)
    }

    fn pages(&self) -> impl Iterator<Item = Gfn> + use<> {
        gfns(self.world.pages())
    }

    /// A page is in use where a pass puts it into the generation that the pass ends. Generations must advance.
    fn by_generation(&mut self, idle: &mut Idle) -> Result<Vec<bool>> {
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
