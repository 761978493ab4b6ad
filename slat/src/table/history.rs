//! History, for tests: a look at the tables before and after every single write to an entry, as if all processors stood
//! still. What is wrong for one instant only is seen here.

use super::entry::Entry;
use std::boxed::Box;
use std::cell::RefCell;
use std::thread_local;

/// What is done before a write to an entry that others can reach, and after every write.
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
    // Taken out meanwhile: what the watcher writes itself is not watched.
    if let Some(mut watch) = WATCH.take() {
        look(&mut watch);
        WATCH.set(Some(watch));
    }
}

/// Runs `work` with `watch` called after each of this thread's writes.
pub(crate) fn watched<R>(watch: impl FnMut(), work: impl FnOnce() -> R) -> R {
    meddled(|_| {}, watch, work)
}

/// The same with `meddle` called before each, at the moment when the writer has decided what to write.
pub(crate) fn meddled<R>(meddle: impl FnMut(&Entry), watch: impl FnMut(), work: impl FnOnce() -> R) -> R {
    /// Undone however `work` ends.
    struct Undo;
    impl Drop for Undo {
        fn drop(&mut self) {
            WATCH.set(None);
        }
    }
    let meddle: Box<dyn FnMut(&Entry) + '_> = Box::new(meddle);
    let watch: Box<dyn FnMut() + '_> = Box::new(watch);
    let watches = (meddle, watch);
    // SAFETY: only lifetimes differ; both are taken out again before this returns or unwinds.
    let watches: Watch = unsafe { core::mem::transmute(watches) };
    WATCH.set(Some(watches));
    let _undo = Undo;
    work()
}
