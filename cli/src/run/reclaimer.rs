//! `--reclaim-idle SECS`: a proactive reclaimer that swaps out pages the guest has not used for SECS seconds.
//!
//! Every SECS / 2 the thread begins a new generation on each node. The pages of a generation were last used before
//! the next generation began. When that one is SECS old, the thread evicts them. A reclaimer on the socket does the
//! same with `+`, `read` and `-`.

use super::args::Run;
use super::guest_vm::Machine;
use crate::thread::{Worker, start_worker};
use slat::{Format, Idle};
use slat_mm::{AddressSpace, NodeGenerations};
use std::thread::Scope;
use std::time::Duration;

/// Starts the thread, if the flag is set.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    run: &Run,
) -> Option<Worker<'scope, ()>> {
    run.reclaim_idle.map(|after| {
        start_worker(scope, move |stop| {
            let Some(mut idle) = Idle::take() else { return };
            while !stop.asked_within(after / 2) {
                pass(&machine.space, &mut idle, after);
            }
        })
    })
}

/// Evicts pages unused for `after`, then ages. Ageing first could merge one of the two oldest generations.
fn pass(space: &AddressSpace, idle: &mut Idle, after: Duration) {
    let Some(lru) = space.lru() else { return };
    for NodeGenerations { node, generations } in lru.generations() {
        // Another thread may have evicted or begun a generation meanwhile: then less is left to do.
        let old = generations.windows(2).filter(|pair| pair[1].age >= after).map(|pair| pair[0].seq);
        if let Some(seq) = old.max() {
            let _ = space.evict(idle, node, seq, None, None);
        }
        if let Some(youngest) = generations.last() {
            let _ = space.age(idle, node, youngest.seq, true, true);
        }
    }
}
