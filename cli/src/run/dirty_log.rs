//! `--dirty-log`: a thread that harvests the guest's dirty log every few milliseconds and checks it.
//!
//! Like a migration, the thread copies each page of a harvest and commits. The copy is a checksum. After the vCPUs
//! have stopped, the thread harvests once more. Then each page must match its last checksum, and a page that the log
//! never named must be zero. A store that was not logged makes its page **lost**.

use super::args::Run;
use super::choices::DirtyLogName;
use super::guest_vm::Machine;
use crate::error::Error;
use crate::live::Live;
use crate::thread::{Stop, Worker, idle, start_worker};
use rapidhash::v3::rapidhash_v3;
use serde::Serialize;
use slat::{Access, Format, Hva, Idle, PAGE_SIZE};
use slat_mm::MmError;
use std::thread::Scope;
use std::time::Duration;

/// The time from the end of a harvest to the next one.
const PERIOD: Duration = Duration::from_millis(2);

/// The counters of the log, under the keys of the report.
#[derive(Debug, Default, Serialize)]
pub struct Harvests {
    /// The kind of the log.
    pub by: &'static str,
    pub harvests: u64,
    /// Pages in all harvests; a page counts once per harvest.
    pub told_pages: u64,
    /// Pages whose content differs from the last checksum.
    pub lost_pages: u64,
    /// Times that a vCPU found its ring full.
    pub ring_full: u64,
    /// Different pages.
    #[serde(skip)]
    pub pages: u64,
    /// By guest frame: the checksum of the page at its last harvest.
    #[serde(skip)]
    sums: Vec<Option<u64>>,
}

/// Starts the thread, where a log is on. It harvests once more after it is stopped, so the vCPUs stop before.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    live: &'scope Live,
    run: &Run,
) -> Option<Worker<'scope, Result<Harvests, Error>>> {
    let logs = run.dirty_log != DirtyLogName::Off;
    logs.then(|| start_worker(scope, move |stop| harvest(machine, live, &stop)))
}

fn harvest<F: Format>(machine: &Machine<F>, live: &Live, stop: &Stop) -> Result<Harvests, Error> {
    let idle = &mut idle()?;
    let mut harvests = Harvests::default();
    let mut last = false;
    loop {
        harvests.take(idle, machine, live)?;
        if last {
            harvests.compare(idle, machine)?;
            return Ok(harvests);
        }
        last = stop.asked_within(PERIOD);
    }
}

impl Harvests {
    fn take<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>, live: &Live) -> Result<(), Error> {
        let harvest = machine.vm.memory().harvest_all(idle)?;
        // Every region with a store has a place by now.
        let pages = (machine.hvas().len() / PAGE_SIZE) as usize;
        self.sums.resize(pages.max(self.sums.len()), None);
        for page in harvest.iter() {
            let sum = sum(idle, machine, page.hva)?;
            let before = self.sums[page.gfn.0 as usize].replace(sum);
            self.pages += u64::from(before.is_none());
        }
        self.harvests += 1;
        self.told_pages += harvest.pages();
        live.add_logged(harvest.iter().map(|page| page.gfn), harvest.pages());
        harvest.commit();
        Ok(())
    }

    fn compare<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>) -> Result<(), Error> {
        let zero = rapidhash_v3(&[0; PAGE_SIZE as usize]);
        for (number, logged) in (0..).zip(&self.sums) {
            let hva = machine.hvas().start + number * PAGE_SIZE;
            // An absent page was never touched, or it was harvested and then swapped out.
            if logged.is_some() || machine.space.lookup(hva, Access::Read).is_some() {
                self.lost_pages += u64::from(sum(idle, machine, hva)? != logged.unwrap_or(zero));
            }
        }
        Ok(())
    }
}

/// The checksum of a page.
fn sum<F: Format>(idle: &mut Idle, machine: &Machine<F>, hva: Hva) -> Result<u64, Error> {
    let mut page = [0; PAGE_SIZE as usize];
    machine.space.read(idle, hva, &mut page).map_err(|error| match error {
        MmError::SwapCorrupt(_) => Error::Corrupt(format!("swap: {error}")),
        error => error.into(),
    })?;
    Ok(rapidhash_v3(&page))
}
