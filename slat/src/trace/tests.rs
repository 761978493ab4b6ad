//! The sums of events equal [`Stats`], after operations drawn by seed, on one thread and on several.

use super::*;
use crate::baselines::Baseline;
use crate::table::formats::{Arm64NoAd, Ept4, Ept4NoAd, Npt4};
use crate::*;
use std::collections::BTreeSet;
use std::format;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::vec::Vec;

/// Sums of the events.
#[derive(Default)]
struct Sums {
    stats: Stats,
    /// Leaves added minus leaves removed, by size.
    leaves: [i64; 3],
    grace_periods: u64,
}

impl Sums {
    fn add(&mut self, event: TraceEvent) {
        let Self { stats, leaves, grace_periods } = self;
        let size = |level: Level| usize::from(level.number()) - 1;
        match event {
            TraceEvent::Fault { result, .. } => match result {
                FaultResult::Mapped(level) => {
                    stats.mapped_faults += 1;
                    leaves[size(level)] += 1;
                }
                FaultResult::Fixed => stats.permission_faults += 1,
                FaultResult::Spurious => stats.spurious_faults += 1,
                FaultResult::Mmio => stats.mmio_faults += 1,
                FaultResult::Deferred | FaultResult::Failed => {}
            },
            TraceEvent::Retry { cause: RetryCause::Asked, .. } => stats.asked_again += 1,
            TraceEvent::Retry { cause, .. } => {
                stats.retries += 1;
                match cause {
                    RetryCause::Moved => stats.retries_by.moved += 1,
                    RetryCause::Covered => stats.retries_by.covered += 1,
                    _ => stats.retries_by.lost += 1,
                }
            }
            TraceEvent::Zap { level, leaves: gone, .. } | TraceEvent::TablesFreed { level, leaves: gone } => {
                leaves[size(level)] -= gone as i64;
            }
            TraceEvent::Split { level, .. } => {
                stats.splits[size(level) - 1] += 1;
                leaves[size(level)] -= 1;
                leaves[size(level) - 1] += 512;
            }
            TraceEvent::Recovered { level, .. } => {
                stats.recovered[size(level) - 1] += 1;
                leaves[size(level)] += 1;
            }
            TraceEvent::Flush { cause, edits, pages, .. } => {
                let paid = Flushes { requested: edits, paid: 1, pages };
                assert!(edits > 0, "{cause:?}: a flush for nothing");
                stats.flushes = stats.flushes.with(paid);
                let with = |(other, flushes): (Cause, Flushes)| {
                    if other == cause { flushes.with(paid) } else { flushes }
                };
                let all: Vec<Flushes> = stats.flushes_by.iter().map(with).collect();
                stats.flushes_by = <[Flushes; Cause::COUNT]>::try_from(all).unwrap().into();
            }
            TraceEvent::GracePeriod => *grace_periods += 1,
            TraceEvent::Reclaimed { subtrees } => stats.tables_reclaimed += subtrees,
        }
    }

    /// Returns the [`Stats`] that the sums imply; gauges, and waits for a lock, which have no event, come from `now`.
    fn expected(&self, now: &Stats) -> Stats {
        Stats {
            leaves: self.leaves.map(|count| u64::try_from(count).expect("more leaves went than came")),
            table_bytes: now.table_bytes,
            lent_bytes: now.lent_bytes,
            tables_waiting: now.tables_waiting,
            ..self.stats
        }
    }
}

/// Frame numbers are addresses. Pages are read-only until a store asks; for some only `resolve` answers.
#[derive(Default)]
struct Counting {
    sums: Mutex<Sums>,
    large: AtomicBool,
    written: Mutex<BTreeSet<u64>>,
    asked: AtomicU64,
}

impl Counting {
    fn page(&self, hva: Hva) -> HostPage {
        let (region, large) = (hva.0 >> Level::M2.shift() >> PAGE_SHIFT, self.large.load(SeqCst));
        let level = if large { Level::M2 } else { Level::K4 };
        let writable = !region.is_multiple_of(3) || self.written.lock().unwrap().contains(&region);
        HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, writable, ..HostPage::PLAIN }
    }
}

impl Host for Counting {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let page = self.page(hva);
        let is_told = !self.asked.fetch_add(1, SeqCst).is_multiple_of(5);
        (is_told && (page.writable || access != Access::Write)).then_some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if access == Access::Write {
            self.written.lock().unwrap().insert(hva.0 >> Level::M2.shift() >> PAGE_SHIFT);
        }
        Ok(self.page(hva))
    }

    fn observe(&self, event: TraceEvent) {
        self.sums.lock().unwrap().add(event);
    }
}

const RAM: Hva = Hva(1 << 40);
const PAGES: u64 = 8 * 512;
const SLOT: SlotId = SlotId(0);

type World<F> = Vm<F, Counting>;

fn world<F: Format>(idle: &mut Idle, seed: u64) -> World<F> {
    let builder = Vm::builder(Counting::default()).vcpus(3).nx_huge_pages(seed.is_multiple_of(2));
    #[cfg(feature = "baselines")]
    let builder =
        builder.baseline([Baseline::NONE, Baseline::READ_WRITE, Baseline::EXCLUSIVE][seed as usize % 3]);
    let vm = builder.table_budget(if seed % 4 == 1 { 40 << 12 } else { u64::MAX }).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SLOT, Gfn(0), PAGES, RAM))).unwrap();
    vm
}

fn span(random: &mut fastrand::Rng) -> Span<Gfn> {
    let (first, most) = (random.u64(..PAGES), [1, 16, 2048][random.usize(..3)]);
    Span::sized(Gfn(first), random.u64(1..=most))
}

/// One operation of the guest, or of its hypervisor ahead of it.
fn guest<F: Format>(vcpu: &mut Vcpu<'_, F, Counting>, idle: &mut Idle, random: &mut fastrand::Rng) {
    let access = [Access::Read, Access::Write, Access::Fetch][random.usize(..3)];
    if random.u32(..16) == 0 {
        let young = random.bool();
        _ = vcpu.prefault(idle, span(random), Prefault { access, young });
    } else {
        _ = vcpu.fault(idle, Fault { gpa: Gfn(random.u64(..PAGES + 64)).gpa(), access });
    }
}

/// One operation of the host, or of its VMM.
fn host<F: Format>(vm: &World<F>, idle: &mut Idle, random: &mut fastrand::Rng) {
    let gfns = span(random);
    let hvas = Span::sized(RAM + gfns.start.0 * PAGE_SIZE, gfns.len() * PAGE_SIZE);
    match random.u32(..16) {
        0..6 => {
            let why = Reason::ALL[random.usize(..11)];
            let mut change = vm.invalidate(hvas, why);
            if !why.page_by_page() {
                change = change.apply(idle).settle();
            }
            change.changed(idle, hvas, None).settle();
        }
        6 => _ = vm.memory().split(idle, gfns, Level::K4),
        7 => _ = vm.memory().recover(idle, Span::new(Gfn(0), Gfn(PAGES))),
        8 => _ = vm.memory().write_protect(idle, gfns).settle(),
        9 => _ = vm.young(idle, hvas, Young::ClearAndFlush),
        10 => vm.host().large.store(random.bool(), SeqCst),
        11 => _ = vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, random.bool())),
        12 | 13 => {
            if let Ok(harvest) = vm.memory().harvest_all(idle) {
                harvest.commit();
            }
        }
        14 if random.u32(..4) == 0 => _ = vm.zap_all(idle),
        14 => vm.collect(idle),
        _ => {
            // Deletes the slot and creates it again.
            let slot = vm.memory().commit(idle, |tx| tx.delete(SLOT)).unwrap();
            vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        }
    }
}

/// Compares the sums of a VM's events with its counters, after all operations have ended.
fn compare<F: Format>(vm: &World<F>, idle: &mut Idle, what: &str) -> (Stats, u64) {
    vm.collect(idle);
    let (now, sums) = (vm.stats(), vm.host().sums.lock().unwrap());
    assert_eq!(sums.expected(&now), now, "{what}");
    (now, sums.grace_periods)
}

/// Runs `operations` operations on this thread.
fn alone<F: Format>(seed: u64, operations: u32) -> (Stats, u64) {
    let mut idle = Idle::take().unwrap();
    let (vm, mut random) = (world::<F>(&mut idle, seed), fastrand::Rng::with_seed(seed));
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for _ in 0..operations {
        if random.u32(..4) > 0 {
            guest(&mut vcpu, &mut idle, &mut random);
        } else {
            host(&vm, &mut idle, &mut random);
        }
    }
    drop(vcpu);
    compare(&vm, &mut idle, &format!("{} alone, seed {seed}", F::NAME))
}

/// Runs the operations on three threads.
fn together<F: Format>(seed: u64, operations: u32) {
    let mut idle = Idle::take().unwrap();
    let vm = world::<F>(&mut idle, seed);
    thread::scope(|scope| {
        for id in 0..3 {
            let (vm, mut random) = (&vm, fastrand::Rng::with_seed(3 * seed + u64::from(id)));
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = (id < 2).then(|| vm.vcpu(VcpuId(id)).unwrap());
                for _ in 0..operations {
                    match &mut vcpu {
                        Some(vcpu) => guest(vcpu, &mut idle, &mut random),
                        None => host(vm, &mut idle, &mut random),
                    }
                }
            });
        }
    });
    compare(&vm, &mut idle, &format!("{} together, seed {seed}", F::NAME));
}

#[test]
fn events_add_up_to_what_a_vm_counts() {
    let mut all = Stats::default();
    let (mut grace_periods, mut causes) = (0, BTreeSet::new());
    for seed in 0..12 {
        let worlds = [alone::<Ept4>, alone::<Ept4NoAd>, alone::<Npt4>, alone::<Arm64NoAd>];
        let (stats, waited) = worlds[seed as usize % 4](seed, 400);
        grace_periods += waited;
        all.mapped_faults += stats.mapped_faults;
        all.permission_faults += stats.permission_faults;
        all.spurious_faults += stats.spurious_faults;
        all.mmio_faults += stats.mmio_faults;
        all.splits[0] += stats.splits[0];
        all.recovered[0] += stats.recovered[0];
        all.tables_reclaimed += stats.tables_reclaimed;
        causes.extend(
            stats.flushes_by.iter().filter(|(_, flushes)| flushes.paid > 0).map(|(cause, _)| cause.name()),
        );
    }
    let counted = [all.mapped_faults, all.permission_faults, all.spurious_faults, all.mmio_faults];
    let others = [all.splits[0], all.recovered[0], all.tables_reclaimed, grace_periods];
    assert!(counted.into_iter().chain(others).all(|count| count > 0), "{all:?}, {grace_periods}");
    assert!(causes.len() > 10, "only {causes:?} caused flushes");
}

#[test]
fn events_of_several_threads_add_up() {
    for seed in 0..6 {
        if seed % 2 == 0 { together::<Ept4>(seed, 400) } else { together::<Ept4NoAd>(seed, 400) }
    }
}
