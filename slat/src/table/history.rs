//! Test hooks before and after every single write to an entry, as if all processors stood still. They show states that
//! are wrong for one moment only.

use super::entry::Entry;
use std::boxed::Box;
use std::cell::RefCell;
use std::thread_local;

/// A hook before a write to a reachable entry, and a hook after every write.
type Watch = (Box<dyn FnMut(&Entry)>, Box<dyn FnMut()>);

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Called before every write to an entry that may be in a table.
pub(super) fn writes(entry: &Entry) {
    looking(|(before, _)| before(entry));
}

/// Called after every write to an entry, or to a root.
pub(super) fn wrote() {
    looking(|(_, after)| after());
}

fn looking(look: impl FnOnce(&mut Watch)) {
    // Taken out meanwhile, so that writes of the hook call no hook.
    if let Some(mut watch) = WATCH.take() {
        look(&mut watch);
        WATCH.set(Some(watch));
    }
}

/// Runs `work`, and calls `watch` after each write by this thread.
pub(crate) fn watched<R>(watch: impl FnMut(), work: impl FnOnce() -> R) -> R {
    meddled(|_| {}, watch, work)
}

/// Like [`watched`], and calls `meddle` before each write, after the writer has decided what to write.
pub(crate) fn meddled<R>(meddle: impl FnMut(&Entry), watch: impl FnMut(), work: impl FnOnce() -> R) -> R {
    /// Removes the hooks, even if `work` panics.
    struct Undo;
    impl Drop for Undo {
        fn drop(&mut self) {
            WATCH.set(None);
        }
    }
    let meddle: Box<dyn FnMut(&Entry) + '_> = Box::new(meddle);
    let watch: Box<dyn FnMut() + '_> = Box::new(watch);
    let watches = (meddle, watch);
    // SAFETY: only the lifetimes differ; both hooks are removed before this function returns or unwinds.
    let watches: Watch = unsafe { core::mem::transmute(watches) };
    WATCH.set(Some(watches));
    let _undo = Undo;
    work()
}
