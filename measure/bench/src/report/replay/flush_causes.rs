//! Stands in the VM's place in front of its address space, and counts what each reason for a change costs.
//!
//! There is only one thread, so each flush while the VM handles a change is for that change.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slat::age::AccessedPages;
use slat::notify::Young;
use slat::table::formats::Ept4;
use slat::{Again, Event, Hva, Idle, Pages, SecondaryMmu, Span, Vm};
use slat_mm::HostView;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A cause of lost translations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cause {
    pub why: String,
    /// Changes that the VM handled.
    pub told: u64,
    /// Shootdowns, and the pages they were for.
    pub flushes: u64,
    pub pages: u64,
}

/// See the module's header.
pub struct Watched {
    vm: Arc<Vm<Ept4, HostView>>,
    /// By why.
    causes: Mutex<BTreeMap<&'static str, Cause>>,
}

impl Watched {
    pub fn new(vm: &Arc<Vm<Ept4, HostView>>) -> Self {
        Self { vm: vm.clone(), causes: Mutex::default() }
    }

    /// The counts, the most flushes first.
    pub fn causes(&self) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self.causes.lock().values().cloned().collect();
        causes.sort_by_key(|cause| Reverse(cause.flushes));
        causes
    }

    /// Counts what is flushed meanwhile for this cause.
    pub fn counted<T>(&self, why: &'static str, work: impl FnOnce() -> T) -> T {
        let before = self.vm.stats().flushes;
        let result = work();
        let after = self.vm.stats().flushes;
        let mut causes = self.causes.lock();
        let none = || Cause { why: why.to_owned(), told: 0, flushes: 0, pages: 0 };
        let cause = causes.entry(why).or_insert_with(none);
        cause.told += 1;
        cause.flushes += after.paid - before.paid;
        cause.pages += after.pages - before.pages;
        result
    }
}

impl SecondaryMmu for Watched {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        self.counted(event.why.name(), || self.vm.around(idle, event, change))
    }

    fn heeds_pages(&self) -> bool {
        self.vm.heeds_pages()
    }

    fn young(&self, idle: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        self.vm.young(idle, hvas, young)
    }

    fn ages(&self) -> bool {
        self.vm.ages()
    }

    fn age(&self, idle: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        self.vm.age(idle, hvas, seen);
    }

    fn forget(&self, idle: &mut Idle, hvas: Span<Hva>) {
        self.counted("aging", || self.vm.forget(idle, hvas));
    }
}
