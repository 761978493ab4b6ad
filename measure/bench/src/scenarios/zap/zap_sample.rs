//! One sample: fill, zap beside others, count; twice.
//!
//! Beside vCPUs that fault, which gives the times; and beside the probe, which says how long another thread had to wait for the zapper.
//! Beside the probe no other thread takes table pages, so that they can be counted.

use super::zapped_range::{Machine, ZappedRange, elsewhere, spare};
use crate::parts::concurrent_latency::{Faulter, PhaseLatencies, TimedAction};
use crate::scenarios::threads_prelude::*;
use crate::scenarios::zap::zap_lap;
use crate::scenarios::zap::zap_lap::{Lap, Times, Way};
use crate::threads::arithmetic::Arithmetic;
use slat::GuestSpace;

/// Onlookers warm up for so long.
const WARM_UP_NS: u64 = 2_000_000;

pub const WAYS: [Way; 3] = [Way::LeafByLeaf, Way::Unhook, Way::All];

pub fn name(way: Way) -> &'static str {
    match way {
        Way::LeafByLeaf => "leaf by leaf",
        Way::Unhook => "unhook",
        Way::All => "zap all",
    }
}

/// Table pages that a zap frees, where nothing but the range is mapped.
fn frees(way: Way, range: &ZappedRange) -> u64 {
    match way {
        Way::LeafByLeaf => 0,
        Way::Unhook => range.tables(),
        // And one root for another.
        Way::All => range.all_tables(),
    }
}

/// One way, under one policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub lock: MmuLock,
}

/// The result of one sample.
pub struct Sample {
    pub times: Times,
    /// Faults beside it, and with no zap for as long.
    pub faults: PhaseLatencies,
    /// Waits for the zapper, and while there is none.
    pub waits: PhaseLatencies,
    /// Shootdowns.
    pub flushes: f64,
    /// Table pages that came back.
    pub freed: f64,
    /// The conditions that must hold.
    pub tally: Vec<Tally>,
}

/// Makes the VM's spare memslot and deletes it: that takes the baseline's lock, and ends in a grace period, so it waits for
/// threads that are inside. The longest wait is the longest hold.
struct Probe<'vm>(GuestSpace<'vm, Npt4, Arithmetic>);

impl TimedAction for Probe<'_> {
    fn act(&mut self, idle: &mut Idle) -> bool {
        let slot = spare();
        let made = self.0.commit(idle, |tx| tx.create(slot));
        made.is_ok() && self.0.commit(idle, |tx| tx.delete(slot.id)) == Ok(slot)
    }
}

impl Entrant {
    /// Both laps.
    pub fn sample(self, range: &ZappedRange) -> Result<Sample, Error> {
        let beside_vcpus = {
            let vm = &range.build(self.lock, &mut idle()?)?;
            let vcpu = |nth: u16| Faulter::new(vm, VcpuId(nth.into()), elsewhere(nth));
            self.lap(range, vm, &mut (1..=range.vcpus).map(vcpu).collect::<Vec<_>>())?
        };
        let beside_probe = {
            let vm = &range.build(self.lock, &mut idle()?)?;
            self.lap(range, vm, &mut [Probe(vm.memory())])?
        };
        let (faults, waits) = (beside_vcpus.seen, beside_probe.seen);
        let mut tally = [beside_vcpus.tally, beside_probe.tally].concat();
        tally.extend([
            ("each fault beside it mapped a page", faults.good),
            ("each memslot beside it was made and deleted", waits.good),
            (
                "the range's tables came back, or none where they stay",
                [beside_probe.freed, frees(self.way, range)],
            ),
        ]);
        let (flushes, freed) = (beside_vcpus.flushes as f64, beside_probe.freed as f64);
        Ok(Sample { times: beside_vcpus.times, faults, waits, flushes, freed, tally })
    }

    /// One zap beside these onlookers.
    fn lap(
        self,
        range: &ZappedRange,
        vm: &Machine,
        onlookers: &mut [impl TimedAction],
    ) -> Result<Lap, Error> {
        let frame = |gfn| Pfn(hva_of(gfn).0 / PAGE_SIZE);
        let zapped = zap_lap::Fixture { vm, frame, range: range.gfns(), mapped: range.mapped(), others: 0 };
        let before = || compute(WARM_UP_NS);
        let lap = Lap::run(&zapped, self.way, &Costs::SERVER, onlookers, before, |times| times.total_ns);
        lap.map_err(Error::Machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::zap::zapped_range::Pages;

    #[test]
    fn a_lap_finds_each_page_gone_and_each_table_back() {
        for pages in [Pages::Dense, Pages::Sparse] {
            for (nth, way) in WAYS.into_iter().enumerate() {
                for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
                    let range = ZappedRange { bytes: 6 << 20, pages, vcpus: 2 };
                    let sample = Entrant { way, lock }.sample(&range).unwrap();
                    for &(what, [good, of]) in &sample.tally {
                        assert_eq!(good, of, "{what} of {way:?} under {lock:?}");
                    }
                    let mapped = if pages == Pages::Dense { 3 * 512 } else { 3 };
                    let of = |what| -> Vec<_> {
                        let tally = sample.tally.iter().filter(|(name, _)| name.contains(what));
                        tally.map(|&(_, [_, of])| of).collect()
                    };
                    assert_eq!((of("mapped before"), of("mapped after")), (vec![mapped; 2], vec![mapped; 2]));
                    assert!(sample.faults.good[1] > 0 && sample.waits.good[1] > 0, "onlookers were there");
                    assert_eq!(of("tables came back"), [[0, 3, 5][nth]]);
                }
            }
        }
    }

    /// Negative control: half of the range is zapped, and the lap's own eyes see the other half.
    #[test]
    fn a_zap_that_stops_half_way_is_found_out() {
        let whole = ZappedRange { bytes: 8 << 20, pages: Pages::Dense, vcpus: 1 };
        let vm = &whole.build(MmuLock::None, &mut Idle::take().unwrap()).unwrap();
        let frame = |gfn| Pfn(hva_of(gfn).0 / PAGE_SIZE);
        let half = Span::sized(Gfn(0), 2 * 512);
        let fixture = zap_lap::Fixture { vm, frame, range: half, mapped: whole.mapped(), others: 0 };
        let none: &mut [Probe<'_>] = &mut [];
        let lap = Lap::run(&fixture, Way::Unhook, &Costs::SERVER, none, || (), |_| 0).unwrap();
        let failed: Vec<_> = lap.tally.iter().filter(|(_, [good, of])| good != of).collect();
        assert_eq!(failed, [&("no page beside it was lost", [2 * 512, 0])]);
    }
}
