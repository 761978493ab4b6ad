//! History, for tests: a look at the tables after every single write to an entry, as if all processors stood still.
//! What is wrong for one instant only is seen here.

use std::boxed::Box;
use std::cell::RefCell;
use std::thread_local;

thread_local! {
    static WATCH: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Called by every write to an entry.
pub(super) fn wrote() {
    // Taken out meanwhile: what the watcher writes itself is not watched.
    if let Some(mut watch) = WATCH.take() {
        watch();
        WATCH.set(Some(watch));
    }
}

/// Runs `work` with `watch` called after each of this thread's writes.
pub(crate) fn watched<R>(watch: impl FnMut(), work: impl FnOnce() -> R) -> R {
    let watch: Box<dyn FnMut() + '_> = Box::new(watch);
    // SAFETY: only the lifetime differs; it is taken out again before this returns, and no panic is caught here.
    let watch: Box<dyn FnMut()> = unsafe { core::mem::transmute(watch) };
    WATCH.set(Some(watch));
    let result = work();
    WATCH.set(None);
    result
}
