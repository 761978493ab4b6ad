//! One lap: the stages of KVM's test, each timed, and what the log told compared with what the guest wrote.
//!
//! ```text
//! populate ─▶ enable ─▶ { dirty memory ─▶ get ─▶ clear } for each iteration ─▶ disable ─▶ every page once more
//! ```
//! vCPUs stand still while the log is got and cleared, as in KVM's test. So the truth is known page by page.

use super::host::{Pages, memory, slot};
use super::logging::{Entrant, Way};
use super::reported::{Reported, Verdict};
use super::sweep::Pass;
use super::team::{Lead, with_team};
use crate::bench::tables;
use slat::table::formats::Ept4;
use slat::{Builder, Gfn, Level, PAGE_SIZE, Slot, Span};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use std::time::{Duration, Instant};

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub vcpus: u32,
    /// A multiple of 2 MiB.
    pub bytes_per_vcpu: u64,
    pub slots: u32,
    pub percent: u32,
    pub iterations: u32,
    /// The host's pages.
    pub size: Level,
    /// What an exit from the guest takes.
    pub exit: Duration,
}

/// How long one iteration took, and what it told.
#[derive(Clone, Copy, Debug)]
pub struct Iteration {
    pub dirty: Duration,
    pub get: Duration,
    /// None where getting has done it, or it is not charged.
    pub clear: Option<Duration>,
    pub verdict: Verdict,
}

/// What one lap gives.
#[derive(Clone, Debug)]
pub struct Sample {
    pub populate: Duration,
    pub enable: Duration,
    /// At least one.
    pub iterations: Vec<Iteration>,
    pub disable: Duration,
    pub again: Duration,
    /// Times that a vCPU stopped since its ring was full.
    pub rings_full: u64,
}

impl Job {
    fn bytes(&self) -> u64 {
        self.bytes_per_vcpu * u64::from(self.vcpus)
    }

    pub fn pages(&self) -> Span<Gfn> {
        memory(self.bytes())
    }

    /// Runs one lap.
    pub fn sample(&self, entrant: Entrant) -> Result<Sample, Error> {
        self.lap(entrant, entrant.builder(self.size, self.vcpus))
    }

    /// The same on this VM.
    pub fn lap(&self, entrant: Entrant, builder: Builder<Ept4, Pages>) -> Result<Sample, Error> {
        tables::reserve(self.bytes() / Level::M2.bytes() * PAGE_SIZE * 65 / 64 + (16 << 20));
        let vm = builder.build().map_err(|error| Error::Machine(error.to_string()))?;
        let gfns = self.pages();
        let slots: Vec<Slot> = (0..).zip(parts(gfns, self.slots)).map(|(id, gfns)| slot(id, gfns)).collect();
        vm.slots().commit(&mut idle()?, |tx| slots.iter().try_for_each(|&slot| tx.create(slot)))?;
        let told = &Reported::nothing(gfns.len());
        with_team(&vm, (&parts(gfns, self.vcpus), self.exit), told, |lead| self.stages(entrant, &slots, lead))
    }

    fn stages(&self, entrant: Entrant, slots: &[Slot], lead: &mut Lead<'_>) -> Result<Sample, Error> {
        let populate = lead.pass(Pass::of_stores(0))?;
        let mut bits = vec![0; (self.pages().len() / 64) as usize];

        let began = Instant::now();
        entrant.enable(lead.vm, lead.idle(), slots)?;
        let enable = began.elapsed();
        if entrant.way == Way::Before {
            // Its log is slat's, which says now that all is dirty.
            bits.fill(u64::MAX);
            entrant.clear(lead.vm, lead.idle(), slots, &bits)?;
        }

        let iterations = (1..=self.iterations).map(|number| {
            let pass = Pass { number: number.into(), percent: self.percent, step: 1 };
            self.iteration(entrant, slots, lead, (pass, &mut bits))
        });
        let iterations = iterations.collect::<Result<_, _>>()?;

        let began = Instant::now();
        entrant.disable(lead.vm, lead.idle(), slots)?;
        let disable = began.elapsed();
        let again = lead.pass(Pass::of_stores(0))?;
        Ok(Sample { populate, enable, iterations, disable, again, rings_full: lead.rings_full() })
    }

    fn iteration(
        &self,
        entrant: Entrant,
        slots: &[Slot],
        lead: &mut Lead<'_>,
        (pass, bits): (Pass, &mut [u64]),
    ) -> Result<Iteration, Error> {
        let told = lead.told;
        told.forget();
        bits.fill(0);
        let dirty = lead.pass(pass)?;
        let began = Instant::now();
        entrant.get(lead.vm, lead.idle(), slots, bits)?;
        let got = Instant::now();
        entrant.clear(lead.vm, lead.idle(), slots, bits)?;
        let cleared = got.elapsed();
        told.add_all(bits);
        Ok(Iteration {
            dirty,
            get: got - began,
            clear: matches!(entrant.way, Way::Manual(_)).then_some(cleared),
            verdict: told.compare(self.pages(), pass),
        })
    }
}

/// So many parts of much the same length, each of whole 2 MiB, and all of `gfns` together.
pub fn parts(gfns: Span<Gfn>, count: u32) -> Vec<Span<Gfn>> {
    let (large, count) = (gfns.len() / Level::M2.pages(), u64::from(count));
    let begin = |nth| gfns.start + large * nth / count * Level::M2.pages();
    (0..count).map(|nth| Span::new(begin(nth), begin(nth + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_and_leave_nothing_out() {
        for count in [1, 2, 3, 7] {
            let parts = parts(memory(7 << 21), count);
            assert!(parts.iter().all(|part| part.len().is_multiple_of(512) && !part.is_empty()));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let all = parts.iter().copied().reduce(|all, part| all.hull(&part));
            assert_eq!((parts.len() as u32, all), (count, Some(memory(7 << 21))));
        }
    }
}
