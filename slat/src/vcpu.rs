//! A vCPU as the engine sees it: a seat on the read side, spare table pages, and a place in shootdowns.

use crate::addr::Pfn;
use crate::dirty::ring::Ring;
use crate::fault::memo::Memo;
use crate::host::{Host, VcpuId};
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::gate::MmuLock;
use crate::sync::idle::Idle;
use crate::sync::readside::{Borrowed, Seat};
use crate::table::format::Format;
use crate::table::pool::Cache;
use crate::table::radix::RootWord;
use crate::tlb::shootdown::{Tlb, Translations, VcpuTlb};
use crate::vm::Vm;
use core::marker::PhantomData;

/// One vCPU of a VM, in the hands of the thread that runs it. See [`Vm::vcpu`]; dropping it gives the number
/// back.
///
/// [`fault`](Self::fault) deals with an access that the hardware could not complete; [`enter`](Self::enter)
/// brackets the time in the guest.
pub struct Vcpu<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(crate) space: &'vm Space<F>,
    pub(crate) id: VcpuId,
    pub(crate) seat: Borrowed<'vm>,
    pub(crate) cache: Cache,
    pub(crate) memo: Memo,
    /// Where its stores are logged, in a VM with rings.
    pub(crate) ring: Option<&'vm Ring>,
    /// Faults are made ahead of the guest.
    pub(crate) prefetching: bool,
    /// The root that its caches come from.
    loaded: Pfn,
}

impl<F: Format, H: Host> core::fmt::Debug for Vcpu<'_, F, H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vcpu").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Whether its vCPUs enter sections by one store: no lock is to be taken, and barriers are asymmetric.
    pub(crate) fn enters_lightly(&self) -> bool {
        self.lock.policy() == MmuLock::None && self.reads.barrier.is_asymmetric()
    }
}

impl<'vm, F: Format, H: Host> Vcpu<'vm, F, H> {
    pub(crate) fn new(vm: &'vm Vm<F, H>, id: VcpuId, seat: Borrowed<'vm>) -> Self {
        let space = &vm.spaces[0];
        let loaded = space.radix.root_word().pfn();
        if vm.enters_lightly() {
            seat.lighten();
        }
        let ring = vm.rings.get(id.0 as usize);
        Self {
            vm,
            space,
            id,
            seat,
            cache: Cache::default(),
            memo: Memo::new(),
            ring,
            prefetching: false,
            loaded,
        }
    }

    /// Its number.
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// The VM that it belongs to.
    pub fn vm(&self) -> &'vm Vm<F, H> {
        self.vm
    }

    /// The address space that it is in.
    pub fn space(&self) -> SpaceId {
        self.space.id
    }

    /// Goes over to another address space, whose root it loads when it enters the guest. False, and nothing is changed,
    /// where the VM was built without it.
    pub fn switch_to(&mut self, space: SpaceId) -> bool {
        let Some(found) = self.vm.space(space) else { return false };
        if space != self.space.id {
            (self.space, self.memo) = (found, Memo::new());
        }
        true
    }

    /// Out of the guest by way of a guard that was leaked: the seat must not look at rest.
    #[cold]
    pub(crate) fn come_back(&mut self) {
        Tlb::leave(self.vm.tlb.vcpu(self.id));
        self.seat.wake(self.vm.enters_lightly());
    }

    /// Enters the guest: from here until the guard is dropped, flushes reach this vCPU by a kick. What was
    /// flushed while it was out is forgotten first, and everything where the root is another one now: load
    /// [`InGuest::root`]. In the guest the thread is not idle: it owes answers.
    pub fn enter<'a>(&'a mut self, _idle: &'a mut Idle, cache: &mut impl Translations) -> InGuest<'a> {
        let tlb = &self.vm.tlb;
        let (vcpu, seat) = (tlb.vcpu(self.id), self.seat.seat());
        seat.rest();
        tlb.enter(vcpu, cache);
        let root = Root { space: self.space.radix.root_word(), loaded: &mut self.loaded };
        let light = self.vm.enters_lightly();
        let mut guest = InGuest { tlb, vcpu, seat, root, light, _idle: PhantomData };
        guest.root.reload(cache);
        guest
    }
}

impl<F: Format, H: Host> Drop for Vcpu<'_, F, H> {
    fn drop(&mut self) {
        if self.seat.is_resting() {
            self.come_back();
        }
        self.vm.pool.give_back(self.cache.drain());
    }
}

/// A vCPU in guest mode. Dropping it leaves the guest.
#[derive(Debug)]
pub struct InGuest<'a> {
    tlb: &'a Tlb,
    vcpu: &'a VcpuTlb,
    seat: &'a Seat,
    root: Root<'a>,
    /// How sections are entered when it is back.
    light: bool,
    _idle: PhantomData<&'a mut Idle>,
}

/// The root that the vCPU uses, beside the one that it should use.
#[derive(Debug)]
struct Root<'a> {
    space: &'a RootWord,
    loaded: &'a mut Pfn,
}

impl Root<'_> {
    /// Loads the space's root, and forgets what came from another one. After the flushes have been carried out: whoever
    /// replaces a root flushes afterwards, and whoever meets a hole of the fresh root before that flushes too; so
    /// each answer must look.
    fn reload(&mut self, cache: &mut impl Translations) {
        let root = self.space.pfn();
        if *self.loaded != root {
            *self.loaded = root;
            cache.flush_all();
        }
    }
}

impl InGuest<'_> {
    /// Where the hardware is to walk from: for CR3, EPTP, VTTBR, hgatp. May be another one after each
    /// [`answer`](Self::answer); then everything cached has been forgotten.
    #[inline(always)]
    pub fn root(&self) -> Pfn {
        *self.root.loaded
    }

    /// Whether somebody waits for this vCPU. A software vCPU asks between accesses; one load of its own line.
    #[inline(always)]
    pub fn kicked(&self) -> bool {
        Tlb::kicked(self.vcpu)
    }

    /// Forgets what has been flushed, and says so to those who wait; the guest goes on.
    pub fn answer(&mut self, cache: &mut impl Translations) {
        self.tlb.catch_up(self.vcpu, cache);
        if !seeded!(RootKept) {
            self.root.reload(cache);
        }
    }
}

impl Drop for InGuest<'_> {
    fn drop(&mut self) {
        Tlb::leave(self.vcpu);
        self.seat.wake(self.light);
    }
}
