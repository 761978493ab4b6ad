//! `GuestSpace`: one of a VM's address spaces. All are equal: each offers every operation.
//!
//! | call | address spaces |
//! |---|---|
//! | [`Vm::guest_space`]: slots, walks, zap, split, recovery, write protection, aging, dirty logs | that space |
//! | the methods of [`Vm`] of the same names | space 0 |
//! | [`Vcpu::fault`](crate::Vcpu::fault), `prefault`, `populate`, `enter` | the vCPU's present space ([`Vcpu::switch_to`](crate::Vcpu::switch_to)) |
//! | [`Vm::invalidate`], [`SecondaryMmu`](crate::SecondaryMmu), [`Vm::mark_dirty`](crate::Vm::mark_dirty): by host address | all spaces |
//! | rings; [`Vm::zap_all`], [`Vm::stats`], budgets and table memory | all spaces |

use crate::addr::{Gfn, Level, Pfn, Span};
use crate::host::Host;
use crate::memslots::Memslots;
use crate::notify::Invalidation;
use crate::slots::SpaceId;
use crate::space::Space;
use crate::sync::idle::Idle;
use crate::sync::mode::{Lockless, Shared};
use crate::table::format::Format;
use crate::table::pool::NoMemory;
use crate::tlb::FlushDebt;
use crate::vm::Vm;
use crate::walk::{Mapping, Walk};
use crate::why::Why;

/// One address space of a VM. See the module's header, and [`Vm::guest_space`].
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
/// let [normal, smm] = [0, 1].map(|id| vm.guest_space(SpaceId(id)).unwrap());
/// let ram = Slot::new(SlotId(0), Gfn(0), 0x1000, Hva(1 << 30));
/// normal.slots().commit(&mut idle, |tx| tx.create(ram))?;
/// smm.slots().commit(&mut idle, |tx| {
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
    vm: &'vm Vm<F, H>,
    space: &'vm Space<F>,
}

impl<F: Format, H: Host> Clone for GuestSpace<'_, F, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Format, H: Host> Copy for GuestSpace<'_, F, H> {}

impl<F: Format, H: Host> Vm<F, H> {
    /// Returns address space `id`, if the VM was built with it
    /// ([`Builder::address_spaces`](crate::Builder::address_spaces)).
    pub fn guest_space(&self, id: SpaceId) -> Option<GuestSpace<'_, F, H>> {
        Some(GuestSpace { vm: self, space: self.space(id)? })
    }

    /// Returns all address spaces, by number.
    pub fn guest_spaces(&self) -> impl Iterator<Item = GuestSpace<'_, F, H>> {
        self.spaces.iter().map(|space| GuestSpace { vm: self, space })
    }
}

impl<'vm, F: Format, H: Host> GuestSpace<'vm, F, H> {
    /// Its number.
    pub fn id(&self) -> SpaceId {
        self.space.id
    }

    /// Its memslots, with their dirty logs.
    pub fn slots(&self) -> Memslots<'vm, F, H> {
        Memslots { vm: self.vm, space: self.space }
    }

    /// Its present root. A vCPU loads [`InGuest::root`](crate::InGuest::root), which changes at its answers.
    pub fn root(&self) -> Pfn {
        self.space.radix.root_word().pfn()
    }

    /// Opens a walk that only reads, and ages; it takes no lock under any policy.
    pub fn lockless<'g>(&'g self, idle: &'g mut Idle) -> Walk<'g, F, H, Lockless> {
        Walk::on_any_seat(self.vm, self.space, idle)
    }

    /// Opens a walk that edits beside others.
    pub fn shared<'g>(&'g self, idle: &'g mut Idle) -> Walk<'g, F, H, Shared> {
        Walk::on_any_seat(self.vm, self.space, idle)
    }

    /// Returns what is mapped at `gfn` now.
    pub fn translate(&self, idle: &mut Idle, gfn: Gfn) -> Option<Mapping> {
        self.lockless(idle).translate(gfn)
    }

    /// Begins an invalidation of guest frames, whatever backs them, like [`Vm::invalidate`] of host addresses. With
    /// [`Why::Unmap`], applying it zaps them.
    pub fn invalidate(&self, gfns: Span<Gfn>, why: Why) -> Invalidation<'vm, F, H> {
        self.vm.invalidate_in(self.space.id, gfns, why)
    }

    /// Withdraws write permission from a range, so that the next store to each page faults ([`Walk::write_protect`]).
    /// Settling the debt pays the flush.
    pub fn write_protect<'g>(&'g self, idle: &'g mut Idle, gfns: Span<Gfn>) -> FlushDebt<'g> {
        self.shared(idle).write_protected(gfns)
    }

    /// Splits large leaves, like [`Vm::split`].
    pub fn split(&self, idle: &mut Idle, gfns: Span<Gfn>, to: Level) -> Result<u64, NoMemory> {
        self.vm.split_in(idle, self.space, gfns, to)
    }

    /// Recovers large leaves from tables, like [`Vm::recover`].
    pub fn recover(&self, idle: &mut Idle, gfns: Span<Gfn>) -> u64 {
        self.vm.recover_in(idle, self.space, gfns)
    }
}
