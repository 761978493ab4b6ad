//! `--dirty-log`: a thread that harvests the guest's dirty log every few milliseconds, and compares.
//!
//! It does what a migration does: it copies each page that it is told of, and commits. The copy is a checksum. When the
//! vCPUs have stopped there is one harvest more, and then every page must hold what it held when the log told of it last,
//! and a page that it never told of nothing but zeroes. One store that was not logged, and its page is **lost**.

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

/// From the end of a harvest to the next.
const PERIOD: Duration = Duration::from_millis(2);

/// What the log has told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub harvests: u64,
    /// Pages, as often as they were told of.
    pub times: u64,
    /// Different pages.
    pub pages: u64,
    /// Pages that hold something else in the end.
    pub lost: u64,
    /// By guest frame: the checksum of what the page held when it was told of last.
    sums: Vec<Option<u64>>,
}

/// The thread.
#[must_use = "it harvests until it is stopped"]
pub struct Harvester<'scope> {
    stop: Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, Result<Told, Error>>>,
}

/// Starts it, where there is a log.
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
    /// The vCPUs have stopped: one harvest more, and what they all have told. `None` without a log.
    pub fn stop(self) -> Result<Option<Told>, Error> {
        self.stop.store(true, Relaxed);
        self.thread.map(|thread| joined(thread.join())).transpose()
    }
}

fn harvest<F: Format>(machine: &Machine<F>, live: &Live, stop: &AtomicBool) -> Result<Told, Error> {
    let idle = &mut idle()?;
    let mut told = Told::default();
    loop {
        // Asked before the harvest: the one after the order is the last.
        let last = stop.load(Relaxed);
        told.take(idle, machine, live)?;
        if last {
            told.compare(idle, machine)?;
            return Ok(told);
        }
        sleep(PERIOD);
    }
}

impl Told {
    fn take<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>, live: &Live) -> Result<(), Error> {
        let harvest = machine.vm.slots().harvest_all(idle)?;
        // All regions that were written to have been placed.
        let pages = (machine.hvas().len() / PAGE_SIZE) as usize;
        self.sums.resize(pages.max(self.sums.len()), None);
        for page in harvest.iter() {
            let sum = sum(idle, machine, page.hva)?;
            let before = self.sums[page.gfn.0 as usize].replace(sum);
            self.pages += u64::from(before.is_none());
        }
        self.harvests += 1;
        self.times += harvest.pages();
        live.told_of(harvest.iter().map(|page| page.gfn), harvest.pages());
        harvest.commit();
        Ok(())
    }

    fn compare<F: Format>(&mut self, idle: &mut Idle, machine: &Machine<F>) -> Result<(), Error> {
        let zero = rapidhash_v3(&[0; PAGE_SIZE as usize]);
        for (number, told) in (0..).zip(&self.sums) {
            let hva = machine.hvas().start + number * PAGE_SIZE;
            // What is not there was never touched, or went to swap after it was written, and told of.
            if told.is_some() || machine.space.lookup(hva, Access::Read).is_some() {
                self.lost += u64::from(sum(idle, machine, hva)? != told.unwrap_or(zero));
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
