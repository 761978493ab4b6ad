//! What is done to the guest's memory while it runs: on timer interrupts, between two of its instructions, by the processor
//! that is interrupted, while another goes on.
//!
//! | option | on an interrupt | and now and then |
//! |---|---|---|
//! | `zap` | [`Vm::zap_all`]: everything is unmapped, the root is another one | |
//! | `log-dirty` | [`harvest`](slat::memslots::Memslots::harvest_all): what has been stored to since, armed again | the log ends, so large pages are recovered; it begins anew, so they are split |
//! | `age` | [`age`](slat::Walk::age): what has been accessed since | |

use crate::Error;
use crate::memory::{Layout, Machine};
use crate::options::Wanted;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::{Format, Idle, SecondaryMmu, Vm};
use slat_walker_x86::println;

/// So many harvests pass between two ends of a dirty log.
const LOG_ROUND: u64 = 64;
/// So many interrupts pass between two turns where there are two processors: their time is the machine's, and each of them is
/// interrupted 250 times a second, so that an emulated guest would do little but fault.
const TURN_OF_TWO: u64 = 16;

/// What has been done, by whichever processor, in numbers.
#[derive(Debug)]
pub struct Chores {
    wanted: Wanted,
    layout: Layout,
    /// Interrupts between two turns.
    turn: u64,
    interrupts: AtomicU64,
    zaps: AtomicU64,
    harvests: AtomicU64,
    dirty: AtomicU64,
    rounds: AtomicU64,
    generations: AtomicU64,
    young: AtomicU64,
}

impl Chores {
    /// None done yet, by so many processors.
    pub fn new(wanted: Wanted, layout: Layout, cpus: u32) -> Self {
        let [interrupts, zaps, harvests, dirty, rounds, generations, young] =
            [const { AtomicU64::new(0) }; 7];
        let turn = if cpus > 1 { TURN_OF_TWO } else { 1 };
        Self { wanted, layout, turn, interrupts, zaps, harvests, dirty, rounds, generations, young }
    }

    /// All that the options ask for.
    pub fn run<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let interrupts = self.interrupts.fetch_add(1, Relaxed) + 1;
        if !interrupts.is_multiple_of(self.turn) {
            return Ok(());
        }
        if self.wanted.age {
            self.age(vm, idle);
        }
        if self.wanted.log_dirty {
            self.harvest(vm, idle)?;
        }
        if self.wanted.zap {
            vm.zap_all(idle)?;
            self.zaps.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// A generation: what has been accessed since the last one is young. Nobody is asked to forget translations but the
    /// processors, and those when they next enter.
    fn age<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle) {
        let mut young = 0;
        vm.lockless(idle).age(self.layout.ram(), |seen| young += u64::from(seen.count()));
        vm.forget(idle, self.layout.ram_hvas());
        self.generations.fetch_add(1, Relaxed);
        self.young.fetch_add(young, Relaxed);
    }

    fn harvest<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let harvest = vm.slots().harvest_all(idle)?;
        self.dirty.fetch_add(harvest.pages(), Relaxed);
        let harvests = self.harvests.fetch_add(1, Relaxed) + 1;
        // A migration would have copied its pages before this.
        harvest.commit();
        if harvests.is_multiple_of(LOG_ROUND) {
            for on in [false, true] {
                vm.slots().commit(idle, |tx| {
                    Layout::RAM_SLOTS.into_iter().try_for_each(|id| tx.set_log_dirty(id, on).map(drop))
                })?;
            }
            self.rounds.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Says what has been done, in lines that begin with `report:`.
    pub fn report<F: Format>(&self, vm: &Vm<F, Machine>) {
        let Self { interrupts, zaps, harvests, dirty, rounds, generations, young, .. } = self;
        let [interrupts, zaps, harvests, dirty, rounds, generations, young] =
            [interrupts, zaps, harvests, dirty, rounds, generations, young].map(|count| count.load(Relaxed));
        let stats = vm.stats();
        println!("report: {interrupts} interrupts");
        println!("report: {zaps} zaps");
        println!("report: {} flushes", stats.flushes.paid);
        println!("report: {harvests} harvests");
        println!("report: {dirty} dirty pages");
        println!("report: {rounds} rounds of the log");
        println!("report: {} splits", stats.splits.iter().sum::<u64>());
        println!("report: {} recovered", stats.recovered.iter().sum::<u64>());
        println!("report: {generations} generations");
        println!("report: {young} young pages");
        println!("report: {} permission faults", stats.permission_faults);
        println!("report: {} mapped KiB", stats.mapped_bytes() >> 10);
        println!("report: {} table KiB", stats.table_bytes >> 10);
    }
}
