//! A real replay of a bundled trace, watched: which pages are in use, which are written, what flushes are for.
//!
//! One thread does everything in turn, so nothing is missed between two looks and every flush has one cause:
//!
//! ```text
//! the guest runs a stretch ─▶ the host moves pages ─▶ the dirty log is harvested ─┐
//!       ▲                                                                         │
//!       └────── how old is each page? ◀── the LRU makes an aging pass ◀───────────┘
//! ```
//! The guest has less room than it uses, so its coldest pages go to swap and come back. Every byte that it reads is
//! checked. Apart from times, two replays are the same.

pub mod flush_causes;
mod page_ages;

use crate::threads::bench_report::Check;
use crate::threads::flag_values::machine_error;
use crate::threads::machine_info::pin;
use crate::threads::software_vcpu::{no_ring, run_until_stopped, vcpu};
use crate::threads::traces::{BASE, POISON, Trace};
use flush_causes::{Cause, Watched};
use hdrhistogram::Histogram;
use page_ages::Ages;
pub use page_ages::Heat;
use serde::{Deserialize, Serialize};
use slat::table::formats::Ept4;
use slat::{Idle, PAGE_SIZE, Span, Vm};
use slat_cli::error::Error;
use slat_cli::thread::{idle, window};
use slat_mm::{AddressSpace, Arena, HostView, LruSettings, Swap};
use slat_vcpu::Cpu;
use slat_vcpu::guest::{Replay as Guest, Want};
use std::sync::Arc;
use std::time::Instant;

/// Stretches that the trace is cut into.
const STRETCHES: usize = 96;
/// Pages that the host moves after each stretch.
const MOVED: usize = 16;
/// The memory of the guest, in percent of the memory that it uses.
const ROOM: u64 = 75;
/// Quantiles of fault latency that are reported.
const QUANTILES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 1.0];

/// The result of a replay.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replay {
    pub trace: String,
    pub accesses: u64,
    /// Pages of 4 KiB that the guest uses, and those that it has room for.
    pub pages: u64,
    pub room: u64,
    pub stretches: Vec<Stretch>,
    pub heat: Heat,
    /// Faults by how long they took: up to so many nanoseconds, each bound about 1.19 times the one before.
    pub fault_ns: Vec<(u64, u64)>,
    /// Shares of the faults, and how long they took at most.
    pub quantiles: Vec<(f64, u64)>,
    pub causes: Vec<Cause>,
    pub verified_reads: u64,
    pub corrupt_reads: u64,
    pub refaults: u64,
}

/// One stretch of the trace.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stretch {
    /// Accesses until its end.
    pub accesses: u64,
    /// How long the guest took for it, in milliseconds.
    pub ms: f64,
    /// Pages that the log reported: written in this stretch.
    pub dirty: u64,
    /// Faults in it.
    pub faults: u64,
    /// Pages in memory at its end.
    pub resident: u64,
}

impl Stretch {
    /// Pages that a second of the guest's own time makes dirty.
    pub fn dirty_rate(&self) -> f64 {
        self.dirty as f64 * 1e3 / self.ms.max(1e-6)
    }
}

impl Replay {
    /// Replays the bundled trace of this name, up to so many accesses.
    pub fn run(name: &str, most: usize, stopped: impl Fn() -> bool) -> Result<Self, Error> {
        pin(0);
        let all = Trace::all(usize::MAX, most)?;
        let trace = all.into_iter().find(|trace| trace.name == name);
        let trace = trace.ok_or_else(|| machine_error(format!("no bundled trace is called {name}")))?;
        let host = Host::new(&trace)?;
        host.replay(&trace, &stopped)
    }

    /// The conditions under which its figures count.
    pub fn checks(&self) -> Vec<Check> {
        let reads = self.verified_reads + self.corrupt_reads;
        vec![
            Check {
                name: "the guest read in each byte what it had stored there".into(),
                ok: self.corrupt_reads == 0 && reads > 0,
                detail: format!("{} of {reads}", self.verified_reads),
            },
            Check {
                name: "every page that was written is told by the log, or came new".into(),
                ok: self.stretches.iter().any(|stretch| stretch.dirty > 0),
                detail: format!("{} told", self.stretches.iter().map(|stretch| stretch.dirty).sum::<u64>()),
            },
        ]
    }
}

/// A machine with less memory than its guest uses.
struct Host {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<Ept4, HostView>>,
    watched: Arc<Watched>,
    /// Guest frames that the trace touches, in order.
    frames: Vec<u64>,
    room: u64,
}

impl Host {
    fn new(trace: &Trace) -> Result<Self, Error> {
        let idle = &mut idle()?;
        let frames = page_ages::frames(trace);
        let room = frames.len() as u64 * ROOM / 100;
        let (bytes, regions) = (trace.bytes(), trace.regions.len() as u64);
        let arena = Arena::builder().limit(bytes + (64 << 20)).poison(POISON).build()?;
        let swap = Swap::builder().memory(bytes).build(&arena)?;
        // Its own tables count, too: one for each 2 MiB, and two for each region.
        let tables = page_ages::tables(&frames) + 2 * regions + 4;
        let space = AddressSpace::builder(&arena)
            .lru(LruSettings::default())
            .swap(&swap)
            .limit((room + tables) * PAGE_SIZE)
            .build()?;
        let builder = Vm::<Ept4, _>::builder(HostView::new(&space)).max_slots(regions as u32);
        let vm = Arc::new(builder.build().map_err(machine_error)?);
        let watched = Arc::new(Watched::new(&vm));
        space.register(&watched);
        trace.place(&space, &vm, idle, true)?;
        Ok(Self { arena, space, vm, watched, frames, room })
    }

    fn replay(&self, trace: &Trace, stopped: &impl Fn() -> bool) -> Result<Replay, Error> {
        let idle = &mut idle()?;
        let mut cpu = Cpu::new(vcpu(&self.vm, 0)?, window(&self.arena));
        let mut guest = Guest::new(self.frames.last().map_or(0, |&last| last as usize + 1));
        guest.layout = trace.layout();
        let mut ages = Ages::new(&self.frames);
        let mut stretches = Vec::new();
        let all: Vec<_> = trace.stretches.iter().flat_map(|stretch| stretch.iter().copied()).collect();
        let mut faults = 0;
        for part in all.chunks(all.len().div_ceil(STRETCHES).max(1)) {
            if stopped() {
                break;
            }
            let began = Instant::now();
            guest.feed(Arc::new(part.to_vec()));
            run_until_stopped(&mut cpu, idle, &mut guest, no_ring)?;
            if guest.wants() != Want::Batch {
                return Err(machine_error("the trace left its regions"));
            }
            let ms = began.elapsed().as_secs_f64() * 1e3;
            self.disturb(idle, stretches.len())?;
            let dirty = self.harvest(idle)?;
            self.age(idle)?;
            ages.look(&self.space, BASE);
            let before = std::mem::replace(&mut faults, cpu.fault_ns.len());
            stretches.push(Stretch {
                accesses: guest.accesses,
                ms,
                dirty,
                faults: faults - before,
                resident: ages.resident(),
            });
        }
        Ok(Replay {
            trace: trace.name.to_owned(),
            accesses: guest.accesses,
            pages: self.frames.len() as u64,
            room: self.room,
            stretches,
            heat: ages.heat(),
            fault_ns: buckets(&cpu.fault_ns),
            quantiles: QUANTILES.map(|share| (share, cpu.fault_ns.value_at_quantile(share))).to_vec(),
            causes: self.watched.causes(),
            verified_reads: guest.findings.verified,
            corrupt_reads: guest.findings.corrupt,
            refaults: self.space.lru().map_or(0, |lru| lru.stats().refaults),
        })
    }

    /// The host's work on its guests: pages move to other frames.
    fn disturb(&self, idle: &mut Idle, stretch: usize) -> Result<(), Error> {
        let pages = self.frames.len();
        // Steps that have no common divisor with anything here, so that all pages have their turn.
        for nth in 0..MOVED {
            let frame = self.frames[(stretch * 7919 + nth * 104_729) % pages];
            self.space.migrate(idle, Span::sized(BASE + frame * PAGE_SIZE, PAGE_SIZE))?;
        }
        Ok(())
    }

    /// The pages written since the last time.
    fn harvest(&self, idle: &mut Idle) -> Result<u64, Error> {
        self.watched.counted("dirty log", || {
            let harvest = self.vm.memory().harvest_all(idle)?;
            let pages = harvest.pages();
            harvest.commit();
            Ok(pages)
        })
    }

    fn age(&self, idle: &mut Idle) -> Result<(), Error> {
        let youngest = self.space.lru().and_then(|lru| {
            let of_node = lru.generations().into_iter().next()?;
            Some((of_node.node, of_node.generations.last()?.seq))
        });
        let (node, seq) =
            youngest.ok_or_else(|| Error::Machine("the address space keeps no generations".into()))?;
        self.space.age(idle, node, seq, true, true).map(drop).map_err(machine_error)
    }
}

/// Four buckets for each doubling.
fn buckets(fault_ns: &Histogram<u64>) -> Vec<(u64, u64)> {
    let mut buckets: Vec<(u64, u64)> = Vec::new();
    for value in fault_ns.iter_recorded() {
        let ns = value.value_iterated_to().max(1);
        let upto = 2f64.powf(((ns as f64).log2() * 4.0).ceil() / 4.0).round() as u64;
        match buckets.last_mut() {
            Some((last, count)) if *last == upto => *count += value.count_at_value(),
            _ => buckets.push((upto, value.count_at_value())),
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_sees_use_and_writes_and_causes() {
        let replay = Replay::run("cc1", 100_000, || false).unwrap();
        assert!(replay.checks().iter().all(|check| check.ok), "{:?}", replay.checks());
        assert_eq!((replay.stretches.len(), replay.accesses), (STRETCHES, 100_000));
        let faults: u64 = replay.stretches.iter().map(|stretch| stretch.faults).sum();
        assert_eq!(replay.fault_ns.iter().map(|bucket| bucket.1).sum::<u64>(), faults);
        assert!(replay.fault_ns.is_sorted_by(|a, b| a.0 < b.0));
        let why: Vec<&str> = replay.causes.iter().map(|cause| cause.why.as_str()).collect();
        for cause in ["migrate", "reclaim", "dirty log"] {
            assert!(why.contains(&cause), "{cause} is not in {why:?}");
        }
        assert!(replay.stretches.iter().all(|stretch| stretch.resident <= replay.room));
    }

    #[test]
    fn two_replays_see_the_same() {
        let [one, other] = [(); 2].map(|()| Replay::run("sort", 20_000, || false).unwrap());
        assert_eq!(one.heat.ages, other.heat.ages);
        let counts = |replay: &Replay| -> Vec<[u64; 3]> {
            { &replay.causes }.iter().map(|cause| [cause.told, cause.flushes, cause.pages]).collect()
        };
        assert_eq!(counts(&one), counts(&other));
    }
}
