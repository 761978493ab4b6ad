//! The dirty log of one VM: no store of its guests is lost between two harvests.

use crate::oracle::{Ledger, Look};
use crate::stage::{PAGES, Primary};
use crate::{VCPUS, VMS};
use slat::{Format, Idle, Vm};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

/// The VM that logs: guests with these numbers run on it.
pub const VM: u64 = 0;

/// See the module's header.
pub struct Log {
    /// Takes what is dirty.
    take: Box<dyn Fn(&mut Idle) -> BTreeSet<u64> + Send>,
    /// What was known of each page right after it was taken last.
    since: Vec<Look>,
}

impl Log {
    pub fn new<F: Format>(vm: &Arc<Vm<F, Primary>>, ledger: &Ledger) -> Self {
        let vm = vm.clone();
        let take = move |idle: &mut Idle| {
            let harvest = vm.slots().harvest_all(idle).expect("it logs");
            let pages = harvest.iter().map(|page| page.gfn.0).collect();
            harvest.commit();
            pages
        };
        Self { take: Box::new(take), since: look(ledger) }
    }

    /// Takes what is dirty; a page that a guest surely wrote to since the last time, and that is not told.
    pub fn harvest(&mut self, idle: &mut Idle, ledger: &Ledger) -> Option<u64> {
        let then = look(ledger);
        thread::yield_now();
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
