//! What is done to the guest's memory while it runs: on timer interrupts, between two of its instructions.
//!
//! | option | on every interrupt | and now and then |
//! |---|---|---|
//! | `zap` | [`Vm::zap_all`]: everything is unmapped, the root is another one | |
//! | `log-dirty` | [`harvest`](slat::slots::Memslots::harvest_all): what has been stored to since, armed again | the log ends, so large pages are recovered; it begins anew, so they are split |
//! | `age` | [`age`](slat::Walk::age): what has been accessed since | |

use crate::Error;
use crate::memory::{Layout, Machine};
use crate::options::Wanted;
use slat::{Format, Idle, SecondaryMmu, Vm};
use slat_walker_x86::println;

/// So many interrupts pass between two ends of a dirty log.
const LOG_ROUND: u64 = 64;

/// What has been done, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Chores {
    wanted: Wanted,
    layout: Layout,
    interrupts: u64,
    zaps: u64,
    harvests: u64,
    dirty: u64,
    rounds: u64,
    generations: u64,
    young: u64,
}

impl Chores {
    /// None done yet.
    pub fn new(wanted: Wanted, layout: Layout) -> Self {
        let [interrupts, zaps, harvests, dirty, rounds, generations, young] = [0; 7];
        Self { wanted, layout, interrupts, zaps, harvests, dirty, rounds, generations, young }
    }

    /// All that the options ask for.
    pub fn run<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        self.interrupts += 1;
        if self.wanted.age {
            self.age(vm, idle);
        }
        if self.wanted.log_dirty {
            self.harvest(vm, idle)?;
        }
        if self.wanted.zap {
            vm.zap_all(idle)?;
            self.zaps += 1;
        }
        Ok(())
    }

    /// A generation: what has been accessed since the last one is young. Nobody is asked to forget translations but the
    /// processor, and that when it next enters.
    fn age<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) {
        let mut young = 0;
        vm.lockless(idle).age(self.layout.ram(), |seen| young += u64::from(seen.count()));
        vm.forget(idle, self.layout.ram_hvas());
        self.generations += 1;
        self.young += young;
    }

    fn harvest<F: Format>(&mut self, vm: &Vm<F, Machine>, idle: &mut Idle) -> Result<(), Error> {
        let harvest = vm.slots().harvest_all(idle)?;
        self.dirty += harvest.pages();
        self.harvests += 1;
        // A migration would have copied its pages before this.
        harvest.commit();
        if self.interrupts.is_multiple_of(LOG_ROUND) {
            for on in [false, true] {
                vm.slots().commit(idle, |tx| {
                    Layout::RAM_SLOTS.into_iter().try_for_each(|id| tx.set_log_dirty(id, on).map(drop))
                })?;
            }
            self.rounds += 1;
        }
        Ok(())
    }

    /// Says what has been done, in lines that begin with `report:`.
    pub fn report<F: Format>(&self, vm: &Vm<F, Machine>) {
        let Self { interrupts, zaps, harvests, dirty, rounds, generations, young, .. } = self;
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
