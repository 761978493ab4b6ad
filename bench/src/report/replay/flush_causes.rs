//! Stands in the VM's place in front of its address space, and counts what each reason for a change costs.
//!
//! There is only one thread, so each flush while the VM handles a change is for that change.

use super::Cause;
use parking_lot::Mutex;
use slat::age::AccessedPages;
use slat::notify::Young;
use slat::table::formats::Ept4;
use slat::{Again, Event, Hva, Idle, Pages, SecondaryMmu, Span, Vm};
use slat_mm::HostView;
use std::sync::Arc;

/// See the module's header.
pub struct Watched {
    vm: Arc<Vm<Ept4, HostView>>,
    causes: Mutex<Vec<Cause>>,
}

impl Watched {
    pub fn new(vm: &Arc<Vm<Ept4, HostView>>) -> Self {
        Self { vm: vm.clone(), causes: Mutex::default() }
    }

    /// What was counted, the most flushes first.
    pub fn causes(&self) -> Vec<Cause> {
        let mut causes = self.causes.lock().clone();
        causes.retain(|cause| cause.told > 0);
        causes.sort_by(|a, b| (b.flushes, &a.why).cmp(&(a.flushes, &b.why)));
        causes
    }

    /// Counts what is flushed meanwhile for this cause.
    pub fn counted<T>(&self, why: &str, work: impl FnOnce() -> T) -> T {
        let before = self.vm.stats().flushes;
        let result = work();
        let after = self.vm.stats().flushes;
        let mut causes = self.causes.lock();
        let at = causes.iter().position(|cause| cause.why == why).unwrap_or_else(|| {
            causes.push(Cause { why: why.to_owned(), told: 0, flushes: 0, pages: 0 });
            causes.len() - 1
        });
        causes[at].told += 1;
        causes[at].flushes += after.paid - before.paid;
        causes[at].pages += after.pages - before.pages;
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
