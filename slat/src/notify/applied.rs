//! `Applied`: an invalidation whose edits are made and whose flush is owed.

use super::begun::Scope;
use super::invalidation::Invalidation;
use crate::{Format, Host, Idle};
use core::marker::PhantomData;

/// An [`Invalidation`] whose edits are made and whose flush is owed, from [`Invalidation::apply`]. Dropping it pays and
/// ends the invalidation.
///
/// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Nothing;
/// # impl Host for Nothing {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
/// let applied = vm.invalidate(Span::sized(Hva(0x7000_0000), 4096), Why::Unmap).apply(&mut idle);
/// assert_eq!(applied.pages(), 0, "nothing was mapped");
/// let change = applied.settle();
/// // … here the host changes its own table …
/// drop(change);
/// ```
#[derive(Debug)]
#[must_use = "the flush is owed, and the range is protected only while this lives"]
pub struct Applied<'vm, 'i, F: Format, H: Host> {
    change: Invalidation<'vm, F, H>,
    /// Settling waits for vCPUs in the guest, so the thread must be idle.
    _idle: PhantomData<&'i mut Idle>,
}

impl<'vm, F: Format, H: Host> Applied<'vm, '_, F, H> {
    /// Pays what is owed: no vCPU uses the range any more. The host now changes its own table, and then drops the
    /// invalidation. Until then it must be kept: bind it to a name.
    pub fn settle(mut self) -> Invalidation<'vm, F, H> {
        self.change.begun.settle(true);
        self.change
    }

    /// Number of frames that lost a translation.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.change.begun.owed.pages
    }

    /// Whether settling has anything to wait for: a flush, or uses of [held](crate::held) frames.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.change.begun.owed.is_nothing()
    }
}

impl<'vm, F: Format, H: Host> Invalidation<'vm, F, H> {
    /// Edits every entry of the range by the plan, takes [held](crate::held) frames back, and returns the invalidation
    /// with its debt. The edits wait for no fault. Settling the debt waits for vCPUs in the guest, and for uses of held
    /// frames that have begun. The host acts on its change only after settling.
    ///
    /// A large page that reaches out of the range is split, and loses the part in the range. For the table page this
    /// may sleep; without one, the whole page is zapped.
    ///
    /// If the reason is one that a host usually reports [page by page](crate::Reason::page_by_page), every page of the range
    /// counts as changed, and is zapped. A host that reports single pages does not call this.
    pub fn apply(mut self, idle: &mut Idle) -> Applied<'vm, '_, F, H> {
        self.begun.edit(idle, &Scope::Whole, None);
        Applied { change: self, _idle: PhantomData }
    }
}
