//! One lap: fill, zap beside others, count.
//!
//! The zapper is a thread of its own, on the first CPU; the others have the CPUs after it. A lap is made twice for
//! each sample: beside vCPUs that fault, which gives the times, and beside the probe, which says how long
//! another thread had to wait for the zapper. Beside the probe no other thread takes table pages, so that
//! they can be counted.

use super::super::harness::{Line, add_pairs};
use super::super::machine::pin;
use super::super::onlooker::{Faulter, Phase, Seen, watch};
use super::ground::{Ground, MOST_VCPUS, Machine, elsewhere};
use super::probe::Probe;
use slat::{Gfn, Idle, Level, MmuLock, PAGE_SIZE, Span, VcpuId, Why};
use slat_cli::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// How a range is zapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each leaf by itself; tables stay.
    LeafByLeaf,
    /// Whole tables, by one entry each.
    Unhook,
    /// A new root for the VM: everything else goes too.
    All,
}

/// One way, under one policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub lock: MmuLock,
}

/// How long a zap took, all accounting included.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub total: Duration,
    /// Its parts, where they can be told apart from outside.
    pub parts: Option<Parts>,
}

/// See [`Times`].
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Until no walk finds the range.
    pub walk: Duration,
    /// Until no TLB holds it.
    pub flush: Duration,
    /// Until every table page has come back and every leaf is booked.
    pub collect: Duration,
}

/// What one sample of an entrant gives.
pub struct Sample {
    pub times: Times,
    /// Faults beside it, and with no zap for as long.
    pub faults: Seen,
    /// Waits for the zapper, and while there is none.
    pub waits: Seen,
    /// Shootdowns.
    pub flushes: f64,
    /// Table pages that came back.
    pub freed: f64,
    pub tally: Tally,
}

/// Counts behind the checks: good, of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Pages that the fill mapped, of those that it should.
    pub filled: [u64; 2],
    /// Pages of the range that are gone, of those mapped.
    pub gone: [u64; 2],
    /// Laps after which the books say what the tables hold.
    pub booked: [u64; 2],
    /// Others' pages that are still there, of those that they faulted in.
    pub kept: [u64; 2],
    /// Faults of the others that mapped a page.
    pub faults: [u64; 2],
    /// Memslots made and deleted by the probe.
    pub probes: [u64; 2],
    /// Table pages that came back, of those that should.
    pub freed: [u64; 2],
}

impl Way {
    pub const ALL: [Self; 3] = [Self::LeafByLeaf, Self::Unhook, Self::All];

    pub fn name(self) -> &'static str {
        match self {
            Self::LeafByLeaf => "leaf by leaf",
            Self::Unhook => "unhook",
            Self::All => "zap all",
        }
    }

    /// Table pages that it gives back, of a range that is all that is mapped.
    fn frees(self, ground: &Ground) -> u64 {
        match self {
            Self::LeafByLeaf => 0,
            Self::Unhook => ground.tables(),
            // And one root for another.
            Self::All => ground.all_tables(),
        }
    }

    fn zap(self, vm: &Machine, ground: &Ground, idle: &mut Idle) -> Result<Times, Error> {
        let start = Instant::now();
        let why = match self {
            Self::LeafByLeaf => Why::Clear,
            Self::Unhook => Why::Unmap,
            Self::All => {
                vm.zap_all(idle).map_err(|error| Error::Machine(error.to_string()))?;
                return Ok(Times { total: start.elapsed(), parts: None });
            }
        };
        let mut change = vm.invalidate(ground.hvas(), why);
        let debt = change.apply(idle);
        let walked = Instant::now();
        debt.settle();
        drop(change);
        let flushed = Instant::now();
        vm.collect(idle);
        let collected = Instant::now();
        let parts = Parts {
            walk: walked.duration_since(start),
            flush: flushed.duration_since(walked),
            collect: collected.duration_since(flushed),
        };
        Ok(Times { total: collected.duration_since(start), parts: Some(parts) })
    }
}

/// Who looks on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Onlookers {
    Vcpus,
    Probe,
}

/// What one lap gives.
struct Lap {
    times: Times,
    seen: Seen,
    flushes: u64,
    freed: u64,
}

impl Entrant {
    /// Both laps.
    pub fn sample(self, ground: &Ground) -> Result<Sample, Error> {
        let mut tally = Tally::default();
        let beside_vcpus = self.lap(ground, Onlookers::Vcpus, &mut tally)?;
        let beside_probe = self.lap(ground, Onlookers::Probe, &mut tally)?;
        let Lap { times, seen: faults, flushes, .. } = beside_vcpus;
        let Lap { seen: waits, freed, .. } = beside_probe;
        Ok(Sample { times, faults, waits, flushes: flushes as f64, freed: freed as f64, tally })
    }

    fn lap(self, ground: &Ground, who: Onlookers, tally: &mut Tally) -> Result<Lap, Error> {
        let mut idle = Idle::take().expect("this thread runs no vCPU");
        let vm = &ground.build(self.lock, &mut idle)?;
        let filled = vm.stats();
        tally.filled.add(filled.leaves[0], ground.mapped());

        let threads = if who == Onlookers::Probe { 1 } else { ground.vcpus };
        let (line, phase) = (&Line::new(usize::from(threads) + 1), &Phase::before());
        let (times, seen) = thread::scope(|scope| {
            let onlooker = |nth: u16| {
                slat_cli::thread::start(scope, move || {
                    pin(usize::from(nth));
                    line.cross();
                    match who {
                        Onlookers::Vcpus => {
                            watch(phase, Faulter::new(vm, VcpuId(nth.into()), elsewhere(nth)))
                        }
                        Onlookers::Probe => watch(phase, Probe::new(vm)),
                    }
                })
            };
            let onlookers: Vec<_> = (1..=threads).map(onlooker).collect();
            let zapper = slat_cli::thread::start(scope, move || {
                pin(0);
                line.cross();
                self.zap(vm, ground, phase)
            });
            let times = zapper.join().expect("the zapper panicked");
            let mut seen = Seen::default();
            for one in onlookers {
                seen.add(&one.join().expect("an onlooker panicked"));
            }
            times.map(|times| (times, seen))
        })?;

        let after = vm.stats();
        let (left, others) = (leaves(vm, &mut idle, ground.gfns()), leaves(vm, &mut idle, everywhere_else()));
        tally.gone.add(ground.mapped() - left, ground.mapped());
        tally.booked.add(u64::from(after.leaves == [left + others, 0, 0]), 1);
        let freed = filled.table_bytes.saturating_sub(after.table_bytes) / PAGE_SIZE;
        match who {
            Onlookers::Vcpus => {
                tally.faults.add(seen.good[0], seen.good[1]);
                if self.way != Way::All {
                    tally.kept.add(others, seen.good[0]);
                }
            }
            Onlookers::Probe => {
                tally.probes.add(seen.good[0], seen.good[1]);
                tally.freed.add(freed, self.way.frees(ground));
            }
        }
        Ok(Lap { times, seen, flushes: after.flushes.paid - filled.flushes.paid, freed })
    }

    /// The zapper's part, after the others have warmed up: the zap, and as long without one.
    fn zap(self, vm: &Machine, ground: &Ground, phase: &Phase) -> Result<Times, Error> {
        let mut idle = Idle::take().expect("a thread of its own");
        phase.around(|| self.way.zap(vm, ground, &mut idle), |times| times.total)
    }
}

fn everywhere_else() -> Span<Gfn> {
    elsewhere(1).hull(&elsewhere(MOST_VCPUS))
}

/// Leaves of 4 KiB in `gfns`.
fn leaves(vm: &Machine, idle: &mut Idle, gfns: Span<Gfn>) -> u64 {
    let mut leaves = 0;
    vm.lockless(idle).for_each(gfns, |mapping| leaves += u64::from(mapping.level == Level::K4));
    leaves
}

/// A count that a check compares.
trait Pair {
    fn add(&mut self, good: u64, of: u64);
}

impl Pair for [u64; 2] {
    fn add(&mut self, good: u64, of: u64) {
        (self[0], self[1]) = (self[0] + good, self[1] + of);
    }
}

impl Tally {
    /// Adds what another sample counted.
    pub fn add(&mut self, other: &Self) {
        add_pairs!(self, other, filled, gone, booked, kept, faults, probes, freed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ground::Pages;
    use super::*;

    fn ground(bytes: u64, pages: Pages) -> Ground {
        Ground { bytes, pages, vcpus: 2 }
    }

    #[test]
    fn a_lap_finds_each_page_gone_and_each_table_back() {
        for pages in [Pages::Dense, Pages::Sparse] {
            for way in Way::ALL {
                for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
                    let sample = Entrant { way, lock }.sample(&ground(6 << 20, pages)).unwrap();
                    let Tally { filled, gone, booked, kept, faults, probes, freed } = sample.tally;
                    for (what, [good, of]) in
                        [filled, gone, booked, kept, faults, probes, freed].iter().enumerate()
                    {
                        assert_eq!(good, of, "{what} of {way:?} under {lock:?}");
                    }
                    let mapped = if pages == Pages::Dense { 3 * 512 } else { 3 };
                    assert_eq!((filled[1], gone[1], booked[1]), (2 * mapped, 2 * mapped, 2));
                    assert!(probes[1] > 0 || faults[1] > 0, "an onlooker was there");
                    assert_eq!(freed[1], [0, 3, 5][way as usize]);
                }
            }
        }
    }

    /// Negative control: half of the range is zapped, and the lap's own eyes see the other half.
    #[test]
    fn a_zap_that_stops_half_way_is_found_out() {
        let mut idle = Idle::take().unwrap();
        let whole = ground(8 << 20, Pages::Dense);
        for way in [Way::LeafByLeaf, Way::Unhook] {
            let vm = whole.build(MmuLock::None, &mut idle).unwrap();
            way.zap(&vm, &ground(4 << 20, Pages::Dense), &mut idle).unwrap();
            assert_eq!(leaves(&vm, &mut idle, whole.gfns()), 2 * 512, "{way:?}");
        }
    }
}
