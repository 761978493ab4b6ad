//! vCPUs that wait for pages which the host said are pending ([`HostError::Pending`](crate::HostError::Pending)).
//!
//! ```text
//! vCPU v, in a fault                        pager P
//! asks the host: pending, token t           puts the page into the host's table
//! records that v waits for t                says that t is ready
//! counts the wait; fence ────────────────── fence
//! asks the host once more                   no wait counted? nothing to do
//! pending still: returns t                  else each wait for t: ready; wakes its vCPU
//! ```
//! One of the two sees the other: v's second question finds the page, or P finds the wait. No wake-up is lost if the
//! page arrives before the fault has returned. If the page arrived in time, v removes its wait.
//!
//! A wait holds no reference to a page, a memslot or a table. Whatever changes meanwhile, the vCPU repeats its access,
//! and a new fault begins.
//!
//! Waits lie in shards, by token: P scans one shard, however many vCPUs there are. Only pending faults write here.

use crate::fallible;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed, fence_after_rmw};
use crate::tlb::shootdown::VcpuTlb;
use crate::{NoMemory, Token, VcpuId};
use alloc::vec::Vec;

const SHARDS: usize = 16;

/// All waits of a VM. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Waits([Shard; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    /// Number of waits; for a moment it may be too low.
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
    /// The page has arrived.
    Ready,
    /// The page has arrived, and a thread has begun to wake the vCPU.
    Woken,
}

impl Shard {
    /// Removes the first wait that satisfies `is`.
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
        // The top bits of a product spread tokens: hosts use page numbers or addresses.
        &self.0[(token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Records that `vcpu` waits for `token`. The caller then asks the host again. Returns false if it waits already.
    pub(crate) fn begin(&self, vcpu: VcpuId, token: Token) -> Result<bool, NoMemory> {
        let shard = self.shard(token);
        let mut all = shard.all.lock();
        if all.iter().any(|wait| wait.token == token && wait.vcpu == vcpu) {
            return Ok(false);
        }
        fallible::reserve(&mut all, 1)?;
        all.push(Wait { token, vcpu, state: State::Waits });
        drop(all);
        // ORDER(wait): the wait is counted before the second question; pairs with the fence in `ready`.
        shard.count.fetch_add(1, Relaxed);
        fence_after_rmw();
        Ok(true)
    }

    /// Calls `wake` for each vCPU that waits for `token`, whose page is in the host's table, without holding a lock.
    /// Returns the number of vCPUs.
    pub(crate) fn ready(&self, token: Token, wake: impl Fn(VcpuId)) -> usize {
        let shard = self.shard(token);
        // The host's table before the count; pairs with the fence in `begin`.
        fence!(wait.ready);
        if shard.count.load(Relaxed) == 0 {
            return 0;
        }
        // Only waits that exist now, not those that begin meanwhile, so the loop ends.
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

    /// Removes and returns a ready token of `vcpu`. The vCPU stays woken while it has others.
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

    /// Removes the wait of `vcpu` for `token`.
    pub(crate) fn forget(&self, vcpu: VcpuId, token: Token) {
        self.shard(token).remove(|wait| wait.vcpu == vcpu && wait.token == token);
    }

    /// Removes all waits of `vcpu`.
    pub(crate) fn forget_all(&self, vcpu: VcpuId) {
        for shard in &self.0 {
            while shard.remove(|wait| wait.vcpu == vcpu).is_some() {}
        }
    }

    /// Returns the vCPUs that wait for `token`.
    pub(crate) fn of(&self, token: Token) -> Vec<VcpuId> {
        let waits = |wait: &&Wait| wait.token == token && wait.state == State::Waits;
        self.shard(token).all.lock().iter().filter(waits).map(|wait| wait.vcpu).collect()
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
