//! A secondary MMU for tests. It counts notifications, gives configured answers, and runs hooks in the middle
//! of changes.

use parking_lot::Mutex;
use slat::{Again, Event, HostPage, Hva, Idle, Pages, SecondaryMmu, Span, Young};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Listener {
    /// Answers [`Again`] where it may.
    pub again: AtomicBool,
    /// Reports that every page was used lately.
    pub is_young: AtomicBool,
    pub begun: AtomicU64,
    pub ended: AtomicU64,
    pub asked: AtomicU64,
    /// Called in the middle of the next change.
    pub during: Mutex<Option<Hook>>,
    /// Called for the next page that is reported, under its lock.
    pub at_page: Mutex<Option<Hook>>,
    pub events: Mutex<Vec<Event>>,
}

impl Listener {
    /// Changes in progress.
    pub fn open(&self) -> u64 {
        self.begun.load(SeqCst) - self.ended.load(SeqCst)
    }
}

impl SecondaryMmu for Listener {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        if !event.may_block && self.again.load(SeqCst) {
            return Err(Again);
        }
        self.events.lock().push(event);
        self.begun.fetch_add(1, SeqCst);
        run(&self.during);
        change(idle, &mut ToldPages(self));
        self.ended.fetch_add(1, SeqCst);
        Ok(())
    }

    fn young(&self, _: &mut Idle, _: Span<Hva>, _: Young) -> bool {
        self.asked.fetch_add(1, SeqCst);
        self.is_young.load(SeqCst)
    }
}

/// Runs the hook once: the hook itself may come here again.
fn run(hook: &Mutex<Option<Hook>>) {
    let taken = hook.lock().take();
    if let Some(hook) = taken {
        hook();
    }
}

struct ToldPages<'a>(&'a Listener);

impl Pages for ToldPages<'_> {
    fn changed(&mut self, _: &mut Idle, _: Span<Hva>, _: Option<HostPage>) {
        run(&self.0.at_page);
    }

    fn flush(&mut self, _: &mut Idle) {}
    fn settle(&mut self, _: &mut Idle, _: Span<Hva>) {}
}
