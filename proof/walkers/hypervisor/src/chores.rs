//! Operations on the guest's memory at timer interrupts, between two of its instructions. The interrupted processor
//! does them while another one runs on.
//!
//! | option | on an interrupt | sometimes |
//! |---|---|---|
//! | `zap` | [`Vm::zap_all`]: everything is unmapped, the root is another one | |
//! | `log-dirty` | [`harvest`](slat::GuestSpace::harvest_all): pages stored to since the last one, armed again | the log ends, so large pages are recovered; it begins anew, so they are split |
//! | `age` | [`age`](slat::Walk::age): pages accessed since the last pass | |
//! | `move` | the host [moves](crate::moves) pages to other frames, and takes some | blocks of 2 MiB are moved |
//!
//! [`change_check`](crate::change_check) compares harvests and aging with the changes of the guest's memory.
//! [`events`](crate::events) compares the engine's events with its counters.

use crate::change_check::{Asked, ChangeCheck};
use crate::error::Error;
use crate::layout::Layout;
use crate::moves::Mover;
use crate::options::{Mistake, Options, Wanted};
use crate::primary_mmu::Machine;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use slat::{Format, Idle, SecondaryMmu, Vm};
use slat_walker_x86::println;
use spin::Mutex;

/// Number of harvests between two ends of a dirty log.
const LOG_ROUND: u64 = 64;
/// Number of interrupts between two comparisons of events with counters, if one processor runs the guest.
const EVENTS_ROUND: u64 = 64;
/// Number of interrupts between two turns with two processors. Their time is the machine's, and each of them is
/// interrupted 250 times a second, so an emulated guest would otherwise do little but fault.
const TURN_OF_TWO: u64 = 16;

/// Counters of the chores, for all processors.
#[derive(Debug)]
pub struct Chores {
    wanted: Wanted,
    layout: Layout,
    /// Number of processors that run the guest.
    processors: u32,
    /// Number of interrupts between two turns.
    turn: u64,
    /// The state, held by the processor that does a turn.
    work: Mutex<(ChangeCheck, Mover)>,
    interrupts: AtomicU64,
    zaps: AtomicU64,
    harvests: AtomicU64,
    dirty: AtomicU64,
    rounds: AtomicU64,
    generations: AtomicU64,
    young: AtomicU64,
}

impl Chores {
    /// Makes the chores without counts.
    pub fn new(options: &Options, host: &Machine) -> Self {
        let Options { chores: wanted, processors, .. } = *options;
        let [interrupts, zaps, harvests, dirty, rounds, generations, young] =
            [const { AtomicU64::new(0) }; 7];
        let turn = if processors > 1 { TURN_OF_TWO } else { 1 };
        let layout = host.layout;
        let asks_young = wanted.age && processors == 1;
        let asked = Asked { alone: processors == 1, dirty: wanted.log_dirty, young: asks_young };
        let mover = Mover::new(host, wanted.mistake == Some(Mistake::UntoldMove));
        let work = Mutex::new((ChangeCheck::new(asked, layout.ram()), mover));
        Self {
            wanted,
            layout,
            processors,
            turn,
            work,
            interrupts,
            zaps,
            harvests,
            dirty,
            rounds,
            generations,
            young,
        }
    }

    /// Does all chores of the options.
    pub fn run<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let interrupts = self.interrupts.fetch_add(1, Relaxed) + 1;
        if !interrupts.is_multiple_of(self.turn) {
            return Ok(());
        }
        // Another processor already does a turn.
        let Some(mut work) = self.work.try_lock() else { return Ok(()) };
        let (check, mover) = &mut *work;
        if self.processors == 1 && interrupts.is_multiple_of(EVENTS_ROUND) {
            vm.host().events.compare(vm, self.processors)?;
        }
        vm.host().compare_clocks()?;
        self.compare(vm, idle, check, false)?;
        if self.wanted.moves {
            mover.turn(vm, idle)?;
        }
        if self.wanted.zap {
            vm.zap_all(idle)?;
            self.zaps.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// After the guest's end: compares all of its memory once more, and checks all free frames.
    pub fn finish<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        Mover::finish(vm.host())?;
        vm.host().compare_clocks()?;
        vm.host().events.compare(vm, self.processors)?;
        self.compare(vm, idle, &mut self.work.lock().0, true)
    }

    /// Ages and harvests, and compares the results with some or all of the guest's memory.
    fn compare<F: Format>(
        &self,
        vm: &Vm<F, Machine>,
        idle: &mut Idle,
        check: &mut ChangeCheck,
        all: bool,
    ) -> Result<(), Error> {
        if !self.wanted.age && !self.wanted.log_dirty {
            return Ok(());
        }
        let pending = check.take_sums(vm.host(), all);
        if self.wanted.age {
            self.age(vm, idle, check);
        }
        if self.wanted.log_dirty {
            self.harvest(vm, idle, check)?;
        }
        check.judge(pending)
    }

    /// Does an aging pass: pages accessed since the last one are young. A processor forgets translations only when it
    /// next enters.
    fn age<F: Format>(&self, vm: &Vm<F, Machine>, idle: &mut Idle, check: &mut ChangeCheck) {
        let generations = self.generations.fetch_add(1, Relaxed) + 1;
        let lost = self.wanted.mistake == Some(Mistake::LostYoung) && generations.is_multiple_of(16);
        let mut young = 0;
        vm.memory().lockless(idle).age(self.layout.ram(), |seen| {
            young += u64::from(seen.count());
            for (&bits, word) in seen.bits().iter().zip(0..).filter(|(bits, _)| **bits != 0 && !lost) {
                check.young.set_word(seen.first() + word * 64, bits);
            }
        });
        vm.forget(idle, self.layout.ram_hvas());
        self.young.fetch_add(young, Relaxed);
    }

    fn harvest<F: Format>(
        &self,
        vm: &Vm<F, Machine>,
        idle: &mut Idle,
        check: &mut ChangeCheck,
    ) -> Result<(), Error> {
        let harvests = self.harvests.fetch_add(1, Relaxed) + 1;
        let harvest = vm.memory().harvest_all(idle)?;
        let lost = self.wanted.mistake == Some(Mistake::LostDirty) && harvests.is_multiple_of(16);
        self.dirty.fetch_add(harvest.pages(), Relaxed);
        let lost = lost.then(|| harvests % harvest.pages().max(1));
        for (page, _) in harvest.iter().zip(0..).filter(|(_, index)| Some(*index) != lost) {
            check.harvest(page.gfn);
        }
        // A migration would copy the pages before this.
        harvest.commit();
        if harvests.is_multiple_of(LOG_ROUND) {
            for on in [false, true] {
                vm.memory().commit(idle, |tx| {
                    Layout::RAM_SLOTS.into_iter().try_for_each(|id| tx.set_log_dirty(id, on).map(drop))
                })?;
            }
            self.rounds.fetch_add(1, Relaxed);
            if self.processors > 1 {
                check.restart();
            }
        }
        Ok(())
    }

    /// Prints the counts, in lines that begin with `report:`.
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
        let (check, mover) = &*self.work.lock();
        let [changed, compared, own] = check.counts;
        println!("report: {compared} pages compared");
        println!("report: {changed} of them changed");
        println!("report: {own} of them by the hypervisor alone");
        let [blocks, moved, taken, zeroes] = mover.counts;
        println!("report: {blocks} blocks moved");
        println!("report: {moved} pages moved");
        println!("report: {taken} pages taken");
        println!("report: {zeroes} of them zero");
        println!("report: {} pages brought back", vm.host().frames.lock().brought);
        println!("report: {} events", vm.host().events.all());
        println!("report: {generations} generations");
        println!("report: {young} young pages");
        println!("report: {} permission faults", stats.permission_faults);
        println!("report: {} mapped KiB", stats.mapped_bytes() >> 10);
        println!("report: {} table KiB", stats.table_bytes >> 10);
    }
}
