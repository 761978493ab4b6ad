//! `--dirty-log`: a thread that harvests the guest's dirty log every few milliseconds and checks it.
//!
//! Like a migration, the thread copies each page of a harvest and commits. The copy is a checksum. After the vCPUs
//! have stopped, the thread harvests once more. Then each page must match its last checksum, and a page that the log
//! never named must be zero. A store that was not logged makes its page **lost**.

use super::args::Run;
use super::choices::DirtyLogName;
use super::machine::Machine;
use super::watch::Live;
use crate::error::Error;
use crate::thread::{idle, joined};
use rapidhash::v3::rapidhash_v3;
use slat::{Access, Format, Hva, Idle, PAGE_SIZE};
use slat_mm::MmError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::Duration;

/// The time from the end of a harvest to the next one.
const PERIOD: Duration = Duration::from_millis(2);

/// The counters of the log.
#[derive(Clone, Debug, Default)]
pub struct Harvests {
    pub harvests: u64,
    /// Pages in all harvests; a page counts once per harvest.
    pub times: u64,
    /// Different pages.
    pub pages: u64,
    /// Pages whose content differs from the last checksum.
    pub lost: u64,
    /// By guest frame: the checksum of the page at its last harvest.
    sums: Vec<Option<u64>>,
}

/// The harvesting thread.
#[must_use = "it harvests until it is stopped"]
pub struct Harvester<'scope> {
    stop: Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, Result<Harvests, Error>>>,
}

/// Starts the thread, where a log is on.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    live: &'scope Live,
    run: &Run,
) -> Harvester<'scope> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = (run.dirty_log != DirtyLogName::Off)
        .then(|| crate::thread::start(scope, move || harvest(machine, live, &stopped)));
    Harvester { stop, thread }
}

impl Harvester<'_> {
    /// Harvests once more after the vCPUs have stopped, and returns the counters. `None` without a log.
    pub fn stop(self) -> Result<Option<Harvests>, Error> {
        self.stop.store(true, Relaxed);
        self.thread.map(|thread| joined(thread.join())).transpose()
    }
}

fn harvest<F: Format>(machine: &Machine<F>, live: &Live, stop: &AtomicBool) -> Result<Harvests, Error> {
    let idle = &mut idle()?;
    let mut harvests = Harvests::default();
    loop {
        // Read before the harvest, so the harvest after the order is the last one.
        let last = stop.load(Relaxed);
        harvests.take(idle, machine, live)?;
        if last {
            harvests.compare(idle, machine)?;
            return Ok(harvests);
        }
        sleep(PERIOD);
    }
}

impl Harvests {
    fn take<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>, live: &Live) -> Result<(), Error> {
        let harvest = machine.vm.slots().harvest_all(idle)?;
        // Every region with a store has a place by now.
        let pages = (machine.hvas().len() / PAGE_SIZE) as usize;
        self.sums.resize(pages.max(self.sums.len()), None);
        for page in harvest.iter() {
            let sum = sum(idle, machine, page.hva)?;
            let before = self.sums[page.gfn.0 as usize].replace(sum);
            self.pages += u64::from(before.is_none());
        }
        self.harvests += 1;
        self.times += harvest.pages();
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
                self.lost += u64::from(sum(idle, machine, hva)? != logged.unwrap_or(zero));
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
