//! The accesses of a program whose working set changes, for [`Replay`](super::Replay).
//!
//! ```text
//! pages ▲  ▒▒▒▒▒        ░ the sweep: every page in turn, once
//!       │░    ░▒▒▒▒▒    ▒ the working set of the phase: its pages repeatedly, in random order
//!       │   ░      ▒▒▒▒▒
//!       └──────────────▶ accesses
//! ```
//! In each phase most accesses go to the phase's working set, which shares half of its pages with the one
//! before. One access in `sweep` continues a sweep over all memory, like a backup or a garbage collector.
//! Faults do not distinguish the two, since pages of the working set fault no more often than others: only
//! accesses to present pages show the working set.
//!
//! A page's number within the working set is unrelated to its address: neighbours in memory are hot and cold.

use crate::trace::{Access, Kind};
use slat::PAGE_SIZE;

/// The accesses. Equal settings give equal accesses on every machine.
#[derive(Clone, Debug)]
pub struct Phases {
    settings: PhasesSettings,
    random: u64,
    /// Accesses made so far.
    made: u64,
}

/// Settings of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhasesSettings {
    /// Number of pages; a power of two.
    pub pages: u64,
    /// Pages in a working set; an even number.
    pub working_set: u64,
    /// Number of phases.
    pub phases: u64,
    /// Accesses per phase.
    pub accesses: u64,
    /// One access in this many belongs to the sweep.
    pub sweep: u64,
}

impl Default for PhasesSettings {
    /// 16 MiB, 6 MiB of which are in use at a time.
    fn default() -> Self {
        Self { pages: 4096, working_set: 1536, phases: 8, accesses: 100_000, sweep: 10 }
    }
}

impl Phases {
    /// Address at which its memory begins.
    pub const START: u64 = 0x10_0000_0000;

    /// Creates a program at its start.
    ///
    /// # Panics
    /// If the settings are not as documented.
    pub fn new(settings: PhasesSettings) -> Self {
        let PhasesSettings { pages, working_set, sweep, .. } = settings;
        assert!(pages.is_power_of_two() && (2..=pages).contains(&working_set) && sweep > 0);
        Self { settings, random: 0x9e37_79b9_7f4a_7c15, made: 0 }
    }

    /// An xorshift generator: small, uniform, and equal on every machine.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl Iterator for Phases {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        let PhasesSettings { pages, working_set, phases, accesses, sweep } = self.settings;
        let phase = self.made / accesses;
        if phase >= phases {
            return None;
        }
        let page = if self.made.is_multiple_of(sweep) {
            self.made / sweep % pages
        } else {
            let number = phase * (working_set / 2) + self.random() % working_set;
            // An odd factor permutes the page numbers.
            number.wrapping_mul(0x9e37_79b1) % pages
        };
        let random = self.random();
        let kind = if random.is_multiple_of(3) { Kind::Store } else { Kind::Load };
        let addr = Self::START + page * PAGE_SIZE + (random >> 32) % (PAGE_SIZE / 8) * 8;
        self.made += 1;
        Some(Access { addr, size: 8, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_phase_uses_its_working_set_and_the_sweep_all_pages() {
        let settings = PhasesSettings { pages: 256, working_set: 64, phases: 3, accesses: 10_000, sweep: 10 };
        let all: Vec<Access> = Phases::new(settings).collect();
        assert_eq!(all.len(), 30_000);
        let mut hot = Vec::new();
        for phase in all.chunks(10_000) {
            let mut counts: HashMap<u64, u32> = HashMap::new();
            for access in phase {
                *counts.entry(access.addr / PAGE_SIZE).or_default() += 1;
            }
            assert_eq!(counts.len(), 256, "the sweep reaches every page");
            let mut pages: Vec<u64> =
                counts.iter().filter(|(_, count)| **count > 50).map(|(page, _)| *page).collect();
            pages.sort_unstable();
            assert_eq!(pages.len(), 64, "{counts:?}");
            hot.push(pages);
        }
        let shared = |a: &[u64], b: &[u64]| a.iter().filter(|page| b.contains(page)).count();
        assert_eq!(
            (shared(&hot[0], &hot[1]), shared(&hot[1], &hot[2]), shared(&hot[0], &hot[2])),
            (32, 32, 0)
        );
    }

    #[test]
    fn equal_settings_give_equal_accesses() {
        let settings = PhasesSettings { accesses: 1000, ..PhasesSettings::default() };
        assert!(Phases::new(settings).eq(Phases::new(settings)));
    }
}
