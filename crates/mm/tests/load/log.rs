//! The dirty log of one VM: no store of its guests is lost between two harvests.

use crate::oracle::{Ledger, Look};
use crate::stage::{PAGES, Primary};
use crate::{VCPUS, VMS};
use slat::{Format, Idle, Vm};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The VM that logs. The guests with this number modulo [`VMS`] run on it.
pub const VM: u64 = 0;

/// Takes the dirty pages.
type Take = dyn Fn(&mut Idle) -> BTreeSet<u64> + Send;

/// The log, and what is known since its last harvest.
pub struct Log {
    take: Box<Take>,
    /// The known contents of each page right after the last harvest.
    since: Vec<Look>,
}

impl Log {
    pub fn new<F: Format>(vm: &Arc<Vm<F, Primary>>, ledger: &Ledger) -> Self {
        let vm = vm.clone();
        let take = move |idle: &mut Idle| {
            let harvest = vm.memory().harvest_all(idle).expect("the VM logs");
            let pages = harvest.iter().map(|page| page.gfn.0).collect();
            harvest.commit();
            pages
        };
        Self { take: Box::new(take), since: look(ledger) }
    }

    /// Takes the dirty pages. Returns a page that a guest certainly wrote to since the last harvest, and that
    /// the log misses. Guests have run since then, and run again in `once_more`.
    pub fn harvest(
        &mut self,
        idle: &mut Idle,
        ledger: &Ledger,
        once_more: impl FnOnce(&mut Idle),
    ) -> Option<u64> {
        let then = look(ledger);
        once_more(idle);
        let last = look(ledger);
        let told = (self.take)(idle);
        let since = std::mem::replace(&mut self.since, look(ledger));
        let logs = |lane: u64| lane < VCPUS && lane % VMS == VM;
        (0..PAGES).find(|&page| {
            let looks = [&since, &then, &last].map(|looks| &looks[page as usize]);
            ledger.was_written(page, looks, logs) && !told.contains(&page)
        })
    }
}

fn look(ledger: &Ledger) -> Vec<Look> {
    (0..PAGES).map(|page| ledger.look(page)).collect()
}
