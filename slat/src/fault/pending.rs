//! Faults on a page that the host will have later ([`HostError::Pending`](crate::HostError::Pending)).
//! [`crate::waits`] has the protocol.

use super::{By, Done, Fault, FaultError};
use crate::host::Kicks;
use crate::trace::FaultResult;
use crate::{Format, Host, Idle, Token, Vcpu, VcpuId, Vm};
use alloc::vec::Vec;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Handles the host's answer that the page is pending: registers this vCPU for the token, and asks once more.
    #[cold]
    #[inline(never)]
    pub(super) fn pending(&mut self, idle: &mut Idle, fault: Fault, by: By) -> Result<Done, FaultError> {
        let token = self.token;
        if !self.vm.waits.begin(self.id, token)? {
            self.observed(fault, FaultResult::Deferred);
            return Ok(Done::Pending);
        }
        if core::mem::replace(&mut self.waiting.asks_again, true) {
            // The host names the page differently each time, so asking would never end. The guest retries at once.
            self.vm.ready(token);
            self.observed(fault, FaultResult::Deferred);
            return Ok(Done::Pending);
        }
        let done = self.fault_in_full(idle, fault, by);
        self.waiting.asks_again = false;
        if done != Ok(Done::Pending) || self.token != token {
            self.vm.waits.forget(self.id, token);
        }
        done
    }

    /// The token of the last page for which a fault or a prefault ended as [pending](crate::Leave::Pending).
    pub fn pending_token(&self) -> Option<Token> {
        self.waiting.ever.then_some(self.token)
    }

    /// Takes a token that this vCPU waits for and that is [ready](Vm::ready). The guest may retry the accesses that
    /// were answered with it, and the vCPU no longer waits for it. Returns `None` if no token is ready. Costs one load
    /// until a token is ready.
    ///
    /// A hypervisor calls this before each entry, and when [`InGuest::has_ready`](crate::InGuest::has_ready) returns
    /// true. It passes the token to its guest, which continues the waiting task (KVM: "page ready"). If the guest knows
    /// no tokens, the hypervisor lets the vCPU run again. Each token is returned once, even if several faults were
    /// answered with it. A ready token guarantees nothing: the page or its memslot may be gone again when the guest
    /// retries.
    pub fn take_ready(&mut self) -> Option<Token> {
        let tlb = self.vm.tlb.vcpu(self.id);
        if !tlb.is_woken() {
            return None;
        }
        self.waiting.asks_again = false;
        self.vm.waits.take(self.id, tlb)
    }

    /// Cancels all waits of this vCPU, for example when it is reset or its guest migrates. No token is returned for
    /// them.
    pub fn forget_tokens(&mut self) {
        self.vm.waits.forget_all(self.id);
        self.vm.tlb.vcpu(self.id).sleeps();
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Declares that the page with this token has arrived. Wakes the vCPUs that wait for it by [`Host::kick`], and
    /// returns their number. Each takes the token by [`Vcpu::take_ready`]. Call it **after** the host's own table has
    /// the page, from any thread that holds no lock that [`Host::kick`] takes. Never sleeps or waits. Calling it twice,
    /// or for an unknown token, has no effect.
    ///
    /// A page that failed to arrive is ready, too: the next fault on it gets the host's error.
    ///
    /// ```
    /// use slat::{table::formats::Ept4, *};
    /// use std::{collections::BTreeSet, sync::Mutex};
    ///
    /// /// Pages that have arrived, and pages that were requested. A page's token is its address, the default.
    /// #[derive(Default)]
    /// struct Remote(Mutex<[BTreeSet<u64>; 2]>);
    /// impl Host for Remote {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         let (page, [here, asked]) = (hva.0 & !0xfff, &mut *self.0.lock().unwrap());
    ///         if !here.contains(&page) {
    ///             asked.insert(page); // …and, if it is new, send a request
    ///             return Err(HostError::Pending);
    ///         }
    ///         Ok(HostPage { pfn: Pfn(page >> 12), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Ept4, _>::builder(Remote::default()).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let load = Fault { gpa: Gpa(0x5008), access: Access::Read };
    /// let Next::Leave(Leave::Pending(token)) = vcpu.fault(&mut idle, load)? else { panic!("the page has not arrived") };
    /// assert_eq!(vm.waiters(token), [VcpuId(0)]);
    /// assert_eq!(vcpu.take_ready(), None); // the vCPU may run another task of the guest
    ///
    /// // The page arrives, on any thread: first in the host's table.
    /// vm.host().0.lock().unwrap()[0].insert(token.0);
    /// assert_eq!(vm.ready(token), 1);
    ///
    /// assert_eq!(vcpu.take_ready(), Some(token));
    /// assert_eq!(vcpu.fault(&mut idle, load)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "the wake-up is the point")]
    pub fn ready(&self, token: Token) -> usize {
        let kicks = Kicks::new(&self.host);
        let woken = self.waits.ready(token, |id| self.tlb.vcpu(id).wake(|| kicks.kick(id)));
        kicks.end();
        woken
    }

    /// The vCPUs that wait for `token`, which is not ready. Others may start to wait meanwhile.
    pub fn waiters(&self, token: Token) -> Vec<VcpuId> {
        self.waits.of(token)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
