//! A fault on a page that the host has not got yet, and does not wait for ([`HostError::Pending`]): [`crate::waits`] has the
//! protocol.

use super::{By, Done, Fault, FaultError};
use crate::host::{Host, Kicks, Token, VcpuId};
use crate::sync::idle::Idle;
use crate::table::format::Format;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use alloc::vec::Vec;

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// The host has said that the page is pending: this vCPU waits for its token from here on, and asks once more.
    #[cold]
    #[inline(never)]
    pub(super) fn pending(&mut self, idle: &mut Idle, fault: Fault, by: By) -> Result<Done, FaultError> {
        let token = self.token;
        if !self.vm.waits.begin(self.id, token)? || seeded!(PendingBelieved) {
            self.observed(fault, Done::Pending.into());
            return Ok(Done::Pending);
        }
        if core::mem::replace(&mut self.waiting.asks_again, true) {
            // The host has another name for the page each time, so no answer would be the last. The guest tries again at once.
            self.vm.ready(token);
            self.observed(fault, Done::Pending.into());
            return Ok(Done::Pending);
        }
        let done = self.fault_in_full(idle, fault, by);
        self.waiting.asks_again = false;
        if done != Ok(Done::Pending) || self.token != token {
            self.vm.waits.forget(self.id, token);
        }
        done
    }

    /// The token of the page for which a fault, or a prefault, ended as [pending](Done::Pending) last.
    pub fn pending_token(&self) -> Option<Token> {
        self.waiting.ever.then_some(self.token)
    }

    /// A token that this vCPU waits for and that is [ready](Vm::ready): the accesses that it was answered for may be made
    /// again. The vCPU does not wait for it any more. `None` where none is ready; one load, as long as none has been.
    ///
    /// A hypervisor calls this before each entry, and when [`InGuest::has_ready`](crate::InGuest::has_ready) says so. It hands
    /// the token to its guest, which goes on with the task that waits (KVM: "page ready"); or, where the guest knows of no
    /// tokens, it lets the vCPU run again. A token is told once, however many faults were answered with it. That it is ready
    /// promises nothing: where the page has gone again, or its memslot, the access finds what is there.
    pub fn take_ready(&mut self) -> Option<Token> {
        let tlb = self.vm.tlb.vcpu(self.id);
        if !tlb.is_woken() {
            return None;
        }
        self.waiting.asks_again = false;
        self.vm.waits.take(self.id, tlb)
    }

    /// This vCPU waits for no token any more, and is told of none: where it is reset, or its guest moves away.
    pub fn forget_tokens(&mut self) {
        self.vm.waits.forget_all(self.id);
        self.vm.tlb.vcpu(self.id).sleeps();
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// The page that the host called `token` is there: wakes the vCPUs that wait for it, by [`Host::kick`], and returns how
    /// many they are. Each finds the token by [`Vcpu::take_ready`]. To be called by any thread that holds no lock that
    /// [`Host::kick`] takes, **after** the host's own table has the page. Sleeps and waits nowhere. To call it twice, or for a
    /// token that was never answered, does nothing more.
    ///
    /// A page that could not be had is ready, too: the next fault on it gets the host's error.
    ///
    /// ```
    /// use slat::{table::formats::Ept4, *};
    /// use std::{collections::BTreeSet, sync::Mutex};
    ///
    /// /// Pages that have come, and pages that are asked for. A page's token is its address, as it is by default.
    /// #[derive(Default)]
    /// struct Remote(Mutex<[BTreeSet<u64>; 2]>);
    /// # unsafe impl TableMemory for Remote {}
    /// impl Host for Remote {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         let (page, [here, asked]) = (hva.0 & !0xfff, &mut *self.0.lock().unwrap());
    ///         if !here.contains(&page) {
    ///             asked.insert(page); // …and, where it is new, a request goes out
    ///             return Err(HostError::Pending);
    ///         }
    ///         Ok(HostPage { pfn: Pfn(page >> 12), ..HostPage::PLAIN })
    ///     }
    /// }
    ///
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Ept4, _>::builder(Remote::default()).build()?;
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let load = Fault { gpa: Gpa(0x5008), access: Access::Read };
    /// assert_eq!(vcpu.fault(&mut idle, load)?, Done::Pending);
    /// let token = vcpu.pending_token().unwrap();
    /// assert_eq!(vm.waiters(token), [VcpuId(0)]);
    /// assert_eq!(vcpu.take_ready(), None); // the vCPU may run another task of the guest
    ///
    /// // The page comes, on any thread: first into the host's table.
    /// vm.host().0.lock().unwrap()[0].insert(token.0);
    /// assert_eq!(vm.ready(token), 1);
    ///
    /// assert_eq!(vcpu.take_ready(), Some(token));
    /// assert_eq!(vcpu.fault(&mut idle, load)?, Done::Mapped(Level::K4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "the wake-up is the point")]
    pub fn ready(&self, token: Token) -> usize {
        let kicks = Kicks::new(&self.host);
        let woken = self.waits.ready(token, |id| self.tlb.vcpu(id).wake(|| kicks.kick(id)));
        kicks.end();
        woken
    }

    /// The vCPUs that wait for `token`, which is not ready. Others may begin to wait meanwhile.
    pub fn waiters(&self, token: Token) -> Vec<VcpuId> {
        self.waits.of(token)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
