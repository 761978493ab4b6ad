//! `GuestSpace`: one of a VM's address spaces. All are equal: each offers every operation.
//!
//! | call | address spaces |
//! |---|---|
//! | [`Vm::memory`]: memslots, walks, splits, recovery, write protection and tracking, aging, dirty logs, held frames | space 0 |
//! | [`Vm::space`]: the same | the space with that number |
//! | [`Vcpu::fault`](crate::Vcpu::fault), `prefault`, `populate`, `enter` | the vCPU's present space ([`Vcpu::switch_to`](crate::Vcpu::switch_to)) |
//! | [`Vm::invalidate`], [`SecondaryMmu`](crate::SecondaryMmu), [`Vm::mark_dirty`](crate::Vm::mark_dirty): by host address | all spaces |
//! | rings; [`Vm::zap_all`], [`Vm::stats`], budgets and table memory | all spaces |

use crate::notify::begun::{Begun, Range};
use crate::space::Space;
use crate::sync::mode::{Lockless, Shared};
use crate::{
    FlushDebt, Format, Gfn, Host, Idle, Invalidation, Mapping, Pfn, Reason, SpaceId, Span, Vm, Walk,
};

/// One address space of a VM, the handle for its memory: see [`Vm::memory`] and [`Vm::space`].
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
/// let memory = vm.memory();
/// memory.commit(&mut idle, |tx| tx.create(Slot::new(SlotId(7), Gfn(16), 16, Hva(0x7000_0000))))?;
/// assert_eq!(memory.find(&mut idle, Gfn(31)).map(|slot| slot.id), Some(SlotId(7)));
/// assert_eq!(memory.find(&mut idle, Gfn(32)), None);
/// let before = memory.generation();
/// memory.commit(&mut idle, |tx| tx.delete(SlotId(7)))?;
/// assert!(memory.snapshot(&mut idle).is_empty() && memory.generation() > before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The example is system management mode, as in KVM: a vCPU in it sees SMRAM, and otherwise the same memory.
///
/// ```
/// use slat::{*, table::formats::Ept4};
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
/// let vm = Vm::<Ept4, _>::builder(Identity).address_spaces(2).build()?;
/// let [normal, smm] = [0, 1].map(|id| vm.space(SpaceId(id)).unwrap());
/// let ram = Slot::new(SlotId(0), Gfn(0), 0x1000, Hva(1 << 30));
/// normal.commit(&mut idle, |tx| tx.create(ram))?;
/// smm.commit(&mut idle, |tx| {
///     tx.create(ram)?;
///     tx.cut(ram.id, Span::sized(Gfn(0xa0), 16), SlotId(1))?;
///     tx.create(Slot::new(SlotId(2), Gfn(0xa0), 16, Hva(1 << 31))) // SMRAM
/// })?;
///
/// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
/// let fault = Fault { gpa: Gpa(0xa_0000), access: Access::Write };
/// vcpu.switch_to(SpaceId(1)); // SMI
/// vcpu.fault(&mut idle, fault)?;
/// vcpu.switch_to(SpaceId(0)); // RSM
/// vcpu.fault(&mut idle, fault)?;
/// let frame = |space: &GuestSpace<'_, _, _>, idle: &mut Idle| space.translate(idle, Gfn(0xa0)).unwrap().leaf.pfn;
/// assert_eq!([frame(&normal, &mut idle), frame(&smm, &mut idle)], [Pfn(0x4_00a0), Pfn(0x8_0000)]);
/// // A change in one space does not touch the other.
/// let change = smm.invalidate(Span::sized(Gfn(0xa0), 16), Why::Unmap).apply(&mut idle).settle();
/// // … here the host changes its own table …
/// drop(change);
/// assert!(smm.translate(&mut idle, Gfn(0xa0)).is_none() && normal.translate(&mut idle, Gfn(0xa0)).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GuestSpace<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
    pub(crate) space: &'vm Space<F>,
}

impl<F: Format, H: Host> Clone for GuestSpace<'_, F, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format, H: Host> Copy for GuestSpace<'_, F, H> {}

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns address space 0, which every VM has.
    #[inline]
    pub fn memory(&self) -> GuestSpace<'_, F, H> {
        GuestSpace { vm: self, space: &self.spaces[0] }
    }

    /// Returns address space `id`, if the VM was built with it
    /// ([`Builder::address_spaces`](crate::Builder::address_spaces)).
    pub fn space(&self, id: SpaceId) -> Option<GuestSpace<'_, F, H>> {
        self.spaces.get(usize::from(id.0)).map(|space| GuestSpace { vm: self, space })
    }
}

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Its number.
    pub fn id(&self) -> SpaceId {
        self.space.id
    }

    /// Its present root. A vCPU loads [`InGuest::root`](crate::InGuest::root), which changes at its answers.
    pub fn root(&self) -> Pfn {
        self.space.radix.root_word().pfn()
    }

    /// Opens a walk that only reads, and ages; it takes no lock under any policy.
    pub fn lockless<'g>(&self, idle: &'g mut Idle) -> Walk<'g, F, H, Lockless>
    where
        'vm: 'g,
    {
        Walk::on_any_seat(self.vm, self.space, idle)
    }

    /// Opens a walk that edits beside others.
    pub fn shared<'g>(&self, idle: &'g mut Idle) -> Walk<'g, F, H, Shared>
    where
        'vm: 'g,
    {
        Walk::on_any_seat(self.vm, self.space, idle)
    }

    /// Returns what is mapped at `gfn` now. Sets no Accessed or Dirty bit: a guest's own accesses use
    /// [`Vcpu::access`](crate::Vcpu::access), as a hardware walker would.
    pub fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.lockless(idle).translate(gfn)
    }

    /// Begins an invalidation of guest frames, whatever backs them, like [`Vm::invalidate`] of host addresses. With
    /// [`Reason::Unmap`], applying it zaps them.
    pub fn invalidate(&self, gfns: Span<Gfn>, why: impl Into<Reason>) -> Invalidation<'vm, F, H> {
        let mut begun = Begun::begin(self.vm, Range::Gfns(self.space.id, gfns), why.into());
        begun.ghost.is_the_hosts();
        Invalidation::of(begun)
    }

    /// Withdraws write permission from a range, so that the next store to each page faults ([`Walk::write_protect`]).
    /// Settling the debt pays the flush.
    pub fn write_protect<'g>(&self, idle: &'g mut Idle, gfns: Span<Gfn>) -> FlushDebt<'g>
    where
        'vm: 'g,
    {
        self.shared(idle).write_protected(gfns)
    }
}
