//! A VM during the test: the engine, the host under it, and the known facts.
//!
//! A use is judged between two answers of a vCPU: a translation that it uses there must be what the host has *now*,
//! through a memslot that exists now, or existed when a running transaction began.

use crate::caches::Translation;
use crate::hazards::Hazards;
use crate::host::{Primary, page_of};
use crate::logs::Logs;
use crate::progress::{Amount, Watch};
use crate::slot_places::{ALIASES, Places, alias, part_of};
use crate::tally::Tally;
use crate::{MEDDLERS, VCPUS};
use slat::baselines::{Baseline, MmuLock};
use slat::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A mistake made on purpose, which the test must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// Shootdowns do nothing.
    NoFlush,
    /// The host changes its page before it announces that.
    RashHost,
    /// Where the host changes several places at once, it ends its invalidations before it changes them.
    EndsFirst,
}

/// The VM's settings, and the choices of its guests and meddlers.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub lock: MmuLock,
    pub nx_huge_pages: bool,
    /// Whether vCPUs run L2 now and then.
    pub nested: bool,
    pub mistake: Mistake,
    /// Whether [`crate::chaos`] takes part, and callbacks misbehave.
    pub chaos: bool,
    pub log: DirtyLog,
    pub seed: u64,
}

impl Setting {
    pub const PLAIN: Self = Self {
        lock: MmuLock::None,
        nx_huge_pages: false,
        nested: false,
        mistake: Mistake::None,
        chaos: false,
        log: DirtyLog::bitmap(),
        seed: 0,
    };
}

/// A failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// A translation was used that the host, or a memslot, had taken back.
    StaleUse,
    /// A link in a table led to no table.
    StrayLink,
    /// A frame with a memslot was taken for MMIO.
    Mmio,
    /// A store to a page that a dirty log did not mark.
    Unmarked,
    /// A large page executes where none may.
    Executes,
}

/// A VM during the test. See the module's header.
pub struct World<F: Format> {
    pub vm: Vm<F, Primary>,
    pub setting: Setting,
    pub watch: Watch,
    pub places: Places,
    pub logs: Logs,
    pub counts: Counts,
}

/// Counters that the VM does not have.
#[derive(Default)]
pub struct Counts {
    pub uses: AtomicU64,
    pub uses_of_l2: AtomicU64,
    pub stale: AtomicU64,
    pub wrong: AtomicU64,
    pub host_changes: AtomicU64,
    pub wide_changes: AtomicU64,
    pub zaps: AtomicU64,
    pub slot_changes: AtomicU64,
    pub log_checks: AtomicU64,
    pub prefaults: AtomicU64,
    pub held: AtomicU64,
    pub no_memory: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl<F: Format> World<F> {
    pub fn new(setting: Setting, amount: Amount, idle: &mut Idle) -> Self {
        let hazards = if setting.chaos { Hazards::some() } else { Hazards::none() };
        let host = Primary::new(setting.mistake, hazards);
        let builder = Vm::<F, _>::builder(host)
            .vcpus(VCPUS as u32)
            .address_spaces(2)
            .baseline(Baseline::NONE.mmu_lock(setting.lock))
            .nx_huge_pages(setting.nx_huge_pages)
            .dirty_log(setting.log);
        let vm = builder.build().expect("the arena is large");
        vm.space(ALIASES).unwrap().commit(idle, |tx| tx.create(alias())).unwrap();
        Self {
            vm,
            setting,
            watch: Watch::new(amount, VCPUS + MEDDLERS),
            places: Places::new(),
            logs: Logs::new(),
            counts: Counts::default(),
        }
    }

    /// Judges a use of `found` for `gfn` by a vCPU in `space`, which has not answered since it looked it up.
    pub fn judge(&self, space: SpaceId, gfn: Gfn, access: Access, found: &Translation) {
        let host = self.vm.host();
        let frame = found.frame(gfn);
        let true_now = self.places.behind(space, gfn).find(|&hva| {
            host.now(hva).is_some_and(|page| page.pfn == frame && (access != Access::Write || page.writable))
        });
        match true_now {
            Some(hva) if access == Access::Write && space != ALIASES => self.logs.store(part_of(hva)),
            Some(_) => {}
            None => self.wrong(Wrong::StaleUse, || {
                let behind = self.places.behind(space, gfn);
                let now: Vec<_> = behind.map(|hva| (page_of(hva), host.now(hva))).collect();
                format!("{access:?} of {gfn:?} in {space:?} by {found:?}; now {now:?}")
            }),
        }
        if self.setting.nx_huge_pages && found.gfns.len() > 1 && found.perms.allows(Access::Fetch) {
            self.wrong(Wrong::Executes, || format!("{found:?}"));
        }
    }

    /// Judges a use of frame `gfn` of space 0, held as `pfn`.
    pub fn judge_held(&self, gfn: Gfn, pfn: Pfn) {
        let host = self.vm.host();
        let is_true = |hva: Hva| host.now(hva).is_some_and(|page| page.pfn == pfn);
        if !self.places.behind(SpaceId(0), gfn).any(is_true) {
            self.wrong(Wrong::StaleUse, || format!("{gfn:?} is held, and used as {pfn:?}"));
        }
    }

    /// Records a failure. The first of its kind is printed; then all threads end.
    pub fn wrong(&self, wrong: Wrong, what: impl FnOnce() -> String) {
        count(&self.counts.wrong);
        if matches!(wrong, Wrong::StaleUse | Wrong::StrayLink) {
            count(&self.counts.stale);
        }
        if self.setting.mistake == Mistake::None && !self.watch.is_stopped() {
            eprintln!("{} {:?}: {wrong:?}: {}", F::NAME, self.setting, what());
        }
        self.watch.stop();
    }

    pub fn tally(&self) -> Tally {
        let (stats, counts) = (self.vm.stats(), &self.counts);
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Tally {
            uses: get(&counts.uses),
            uses_of_l2: get(&counts.uses_of_l2),
            faults: stats.mapped_faults + stats.permission_faults + stats.spurious_faults + stats.mmio_faults,
            retries: stats.retries,
            prefaults: get(&counts.prefaults),
            host_changes: get(&counts.host_changes),
            wide_changes: get(&counts.wide_changes),
            zaps: get(&counts.zaps),
            splits: stats.splits[0],
            recovered: stats.recovered[0],
            reclaimed: stats.tables_reclaimed,
            slot_changes: get(&counts.slot_changes),
            log_checks: get(&counts.log_checks),
            held: get(&counts.held),
            no_memory: get(&counts.no_memory),
            stale: get(&counts.stale),
        }
    }
}
