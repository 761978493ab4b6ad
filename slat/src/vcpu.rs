//! A vCPU: a seat on the read side, spare table pages, and a slot in shootdowns.

pub mod entry;
mod run;

pub use run::Processor;

use crate::dirty_log::ring::Ring;
use crate::hooks::{Nested, NestedHooks, NestedState};
use crate::loaded::Loaded;
use crate::memo::Memo;
use crate::oracle;
use crate::space::Space;
use crate::sync::{Borrowed, ReadSide, Seat, Section, Tally};
use crate::table::pool::Cache;
use crate::tlb::shootdown::Tlb;
use crate::{Format, Host, SpaceId, Token, VcpuId, Vm};

/// One vCPU of a VM, owned by the thread that runs it. See [`Vm::vcpu`]. Dropping it frees the number for another
/// thread.
///
/// [`fault`](Self::fault) handles an access that the hardware could not complete. [`enter`](Self::enter) returns a
/// guard; the vCPU is in the guest until the guard is dropped.
///
/// ```
/// use slat::{*, table::formats::Npt4};
///
/// /// A host whose frame is always the address.
/// struct Identity;
/// impl Host for Identity {
///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
///     }
/// }
///
/// let mut idle = Idle::take().unwrap();
/// let vm = Vm::<Npt4, _>::builder(Identity).build()?;
/// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let store = Fault { gpa: Gpa(0x5123), access: Access::Write }; // as the hardware reports it
/// assert_eq!(vcpu.fault(&mut idle, store)?, Next::Resume(Resume::Mapped(Level::K4))); // enter the guest again
/// let beyond = Fault { gpa: Gpa(0x20_0000), access: Access::Read };
/// assert_eq!(vcpu.fault(&mut idle, beyond)?, Next::Emulate(Emulate::NoMemory)); // no memslot: emulate a device
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Vcpu<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(crate) space: &'vm Space<F>,
    pub(crate) id: VcpuId,
    /// Private to this file: sections begin through [`awake`](Self::awake) or [`light_section`](Self::light_section).
    seat: Borrowed<'vm>,
    pub(crate) cache: Cache,
    pub(crate) memo: Memo,
    /// The ring that logs the vCPU's stores, in a VM with rings.
    pub(crate) ring: Option<&'vm Ring>,
    pub(crate) loaded: Loaded,
    pub(crate) nested: <Nested as NestedState>::OfVcpu,
    pub(crate) waiting: Waiting,
    /// The token of the last pending page, if there was [one](Waiting::ever).
    pub(crate) token: Token,
    /// Whether sections begin by one store: see [`Vm::enters_lightly`].
    light: bool,
}

/// The state of a wait for pending pages: see [`HostError::Pending`](crate::HostError::Pending).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waiting {
    /// The vCPU has waited for a token before.
    pub(crate) ever: bool,
    /// The vCPU waits for the token that the host returned, and now asks the host a second time.
    pub(crate) asks_again: bool,
}

impl<F: Format, H: Host> core::fmt::Debug for Vcpu<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vcpu").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Claims vCPU `id` for the thread that will run it. Returns `None` if the VM has fewer vCPUs, or if another thread
    /// has this one.
    pub fn vcpu(&self, id: VcpuId) -> Option<Vcpu<'_, F, H>> {
        if id.0 >= self.policy.vcpus {
            return None;
        }
        self.reads.claim(id.0 as usize).map(|seat| Vcpu::new(self, id, seat))
    }

    /// Whether vCPUs enter sections by one store: the VM has no lock, and barriers are asymmetric.
    fn enters_lightly(&self) -> bool {
        !self.policy.baseline.has_lock() && self.reads.barrier.is_asymmetric()
    }
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    pub(crate) fn new(vm: &'vm Vm<F, H>, id: VcpuId, seat: Borrowed<'vm>) -> Self {
        let space = &vm.spaces[0];
        let loaded = Loaded::UNKNOWN;
        let light = vm.enters_lightly();
        if light {
            seat.lighten();
        }
        let ring = vm.rings.all().get(id.0 as usize);
        let (cache, memo, waiting) = (Cache::default(), Memo::new(), Waiting::default());
        let token = Token(0);
        let nested = <Nested as NestedState>::OfVcpu::default;
        Self { vm, space, id, seat, cache, memo, ring, loaded, nested: nested(), waiting, token, light }
    }

    /// The vCPU's number.
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// The VM that the vCPU belongs to.
    pub fn vm(&self) -> &'vm Vm<F, H> {
        self.vm
    }

    /// The address space that the vCPU is in.
    pub fn space(&self) -> SpaceId {
        self.space.id
    }

    /// Moves the vCPU to another address space; the next entry into the guest loads that space's root. Returns false
    /// and changes nothing if the VM has no such space.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        let Some(found) = self.vm.space(space) else { return false };
        if space != self.space.id {
            Nested::leave(self);
            (self.space, self.memo) = (found.space, Memo::new());
        }
        true
    }

    /// The vCPU's seat, to begin a section on. A vCPU whose [`InGuest`] was leaked is still in the guest. Its seat is
    /// parked, so grace periods skip it. This function first takes the vCPU out of the guest.
    #[inline(always)]
    pub(crate) fn awake(&self) -> &'vm Seat {
        if self.seat.is_parked() {
            self.leave_leaked_guest();
        }
        self.seat.for_owner()
    }

    /// Begins a section by one store, if the seat is [light](Seat::is_light). A light seat is awake.
    #[inline(always)]
    pub(crate) fn light_section(&self) -> Option<Section<'vm>> {
        self.seat.is_light().then(|| ReadSide::enter_light(self.seat.for_owner()))
    }

    /// Runs `wait` outside any section; grace periods skip this vCPU meanwhile.
    #[inline(always)]
    pub(crate) fn park_while(&self, wait: impl FnOnce()) {
        self.seat.park();
        wait();
        self.seat.unpark(self.light);
    }

    /// Returns the vCPU's spare table pages to the VM. For a vCPU that will stay idle, before [`Vm::shrink`]. The next
    /// fault that needs a table fetches new pages.
    pub fn give_tables_back(&mut self) {
        self.vm.pool.give_back(self.cache.drain());
    }

    /// The vCPU's counters.
    pub(crate) fn tally(&self) -> &Tally {
        &self.seat.tally
    }

    #[cold]
    fn leave_leaked_guest(&self) {
        Tlb::leave(self.vm.tlb.vcpu(self.id));
        self.seat.unpark(self.light);
        oracle::guest_was_leaked(&self.vm.host, self.id);
    }
}

impl<F: Format, H: Host> Drop for Vcpu<'_, F, H> {
    fn drop(&mut self) {
        self.awake();
        self.vm.pool.give_back(self.cache.drain());
        if self.waiting.ever {
            self.vm.waits.forget_all(self.id);
        }
        Nested::leave(self);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
