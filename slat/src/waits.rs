//! Which vCPUs wait for which pages, of those that the host said are pending ([`HostError::Pending`](crate::HostError::Pending)).
//!
//! ```text
//! vCPU v, in a fault                        pager P
//! asks the host: pending, token t           puts the page into the host's table
//! records that v waits for t                says that t is ready
//! counts the wait; fence ────────────────── fence
//! asks the host once more                   no wait counted? nothing to do
//! pending still: returns t                  else each wait for t: ready; wakes its vCPU
//! ```
//! One of the two sees the other: the second question finds the page, or P finds the wait. So no wake-up is lost where the page
//! comes before the fault has returned. A wait that is left over, since the page came in time, is taken back by v.
//!
//! A wait holds no reference to a page, a memslot or a table. Whatever changes while it waits, the vCPU makes its access again,
//! and that fault begins anew.
//!
//! Waits lie in shards, by token: P looks at a few of them, however many vCPUs there are. Only faults that are pending write
//! here.

use crate::host::{Token, VcpuId};
use crate::sync::prim::{AtomicU64, Mutex, Relaxed, SeqCst, fence, fence_after_rmw};
use crate::table::pool::NoMemory;
use crate::tlb::shootdown::VcpuTlb;
use alloc::vec::Vec;

const SHARDS: usize = 16;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Waits([Shard; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    /// How many waits there are, or less for a moment.
    count: AtomicU64,
    /// A leaf lock.
    all: Mutex<Vec<Wait>>,
}

/// vCPU `vcpu` waits for `token`.
#[derive(Clone, Copy, Debug)]
struct Wait {
    token: Token,
    vcpu: VcpuId,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waits,
    /// The page is there.
    Ready,
    /// The same, and a thread has begun to wake the vCPU.
    Woken,
}

impl Shard {
    /// Removes the first wait for which `is` is true.
    fn remove(&self, is: impl Fn(&Wait) -> bool) -> Option<Wait> {
        let mut all = self.all.lock();
        let at = all.iter().position(is)?;
        let wait = all.swap_remove(at);
        drop(all);
        self.count.fetch_sub(1, Relaxed);
        Some(wait)
    }
}

impl Waits {
    fn shard(&self, token: Token) -> &Shard {
        // The top bits of a product: hosts number pages, or say where they are.
        &self.0[(token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// vCPU `vcpu` waits for `token`: the host is to be asked once more. False: it has waited before, and was asked since.
    pub(crate) fn begin(&self, vcpu: VcpuId, token: Token) -> Result<bool, NoMemory> {
        let shard = self.shard(token);
        let mut all = shard.all.lock();
        if all.iter().any(|wait| wait.token == token && wait.vcpu == vcpu) {
            return Ok(false);
        }
        all.try_reserve(1).map_err(|_| NoMemory)?;
        all.push(Wait { token, vcpu, state: State::Waits });
        drop(all);
        // ORDER(wait): the wait is counted before the second question; pairs with the fence in `ready`.
        shard.count.fetch_add(1, Relaxed);
        if !seeded!(WaitUnfenced) {
            fence_after_rmw();
        }
        Ok(true)
    }

    /// The page of `token` is in the host's table: calls `wake` for each vCPU that waits for it, within no lock. Returns for
    /// how many.
    pub(crate) fn ready(&self, token: Token, wake: impl Fn(VcpuId)) -> usize {
        let shard = self.shard(token);
        // ORDER(wait): the host's table before the count; pairs with the fence in `begin`.
        if !seeded!(ReadyUnfenced) {
            fence(SeqCst);
        }
        if shard.count.load(Relaxed) == 0 {
            return 0;
        }
        // Those that wait now, and none that begins to wait meanwhile: so this ends.
        for wait in shard.all.lock().iter_mut().filter(|wait| wait.token == token) {
            if wait.state == State::Waits {
                wait.state = State::Ready;
            }
        }
        let mut woken = 0;
        let next = || {
            let mut all = shard.all.lock();
            let wait = all.iter_mut().find(|wait| wait.token == token && wait.state == State::Ready)?;
            wait.state = State::Woken;
            Some(wait.vcpu)
        };
        while let Some(vcpu) = next() {
            wake(vcpu);
            woken += 1;
        }
        woken
    }

    /// A token of `vcpu` that is ready, which it does not wait for any more. It stays woken while there are others.
    pub(crate) fn take(&self, vcpu: VcpuId, tlb: &VcpuTlb) -> Option<Token> {
        let is_ready = |wait: &Wait| wait.vcpu == vcpu && wait.state != State::Waits;
        tlb.sleeps();
        let mut token = None;
        for shard in &self.0 {
            if token.is_none() {
                token = shard.remove(is_ready).map(|wait| wait.token);
            }
            if token.is_some() && shard.all.lock().iter().any(is_ready) {
                tlb.wake(|| ());
                break;
            }
        }
        token
    }

    /// `vcpu` does not wait for `token` any more.
    pub(crate) fn forget(&self, vcpu: VcpuId, token: Token) {
        self.shard(token).remove(|wait| wait.vcpu == vcpu && wait.token == token);
    }

    /// The same for all tokens.
    pub(crate) fn forget_all(&self, vcpu: VcpuId) {
        for shard in &self.0 {
            while shard.remove(|wait| wait.vcpu == vcpu).is_some() {}
        }
    }

    /// The vCPUs that wait for `token`.
    pub(crate) fn of(&self, token: Token) -> Vec<VcpuId> {
        let waits = |wait: &&Wait| wait.token == token && wait.state == State::Waits;
        self.shard(token).all.lock().iter().filter(waits).map(|wait| wait.vcpu).collect()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
