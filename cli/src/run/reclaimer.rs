//! `--reclaim-idle SECS`: a proactive reclaimer inside the run. What the guest has not used for that long goes to swap.
//!
//! Twice in SECS every node begins a new generation. A generation's pages were last used before the next one began; so
//! when that one is SECS old, they go. It is what a reclaimer on the socket would do with `+`, `read` and `-`.

use super::args::Run;
use super::machine::Machine;
use slat::{Format, Idle};
use slat_mm::{AddressSpace, NodeGenerations};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Scope;
use std::time::Duration;

/// The thread's other end: it stops when this is dropped.
#[must_use = "dropping it stops the thread"]
pub struct Reclaimer(#[allow(dead_code, reason = "held for its drop")] Option<SyncSender<()>>);

/// Starts it, where it is wanted.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    run: &Run,
) -> Reclaimer {
    Reclaimer(run.reclaim_idle.map(|after| {
        let (keep, stop) = sync_channel(0);
        crate::thread::start(scope, move || {
            let Some(mut idle) = Idle::take() else { return };
            while stop.recv_timeout(after / 2) == Err(RecvTimeoutError::Timeout) {
                pass(&machine.space, &mut idle, after);
            }
        });
        keep
    }))
}

/// Evicts what was not used for `after`, and ages. In this order: a new generation may make one of the two oldest.
fn pass(space: &AddressSpace, idle: &mut Idle, after: Duration) {
    let Some(lru) = space.lru() else { return };
    for NodeGenerations { node, generations } in lru.generations() {
        // Another thread may have evicted a generation, or begun one, meanwhile: then there is less to do.
        let old = generations.windows(2).filter(|pair| pair[1].age >= after).map(|pair| pair[0].seq);
        if let Some(seq) = old.max() {
            let _ = space.evict(idle, node, seq, None, None);
        }
        if let Some(youngest) = generations.last() {
            let _ = space.age(idle, node, youngest.seq, true, true);
        }
    }
}
