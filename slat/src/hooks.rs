//! Nested guests are optional: the engine calls the hooks of [`Nested`], and names no other item of them.
//!
//! | hook | when the engine calls it |
//! |---|---|
//! | [`reach`](NestedHooks::reach), [`forget`](NestedHooks::forget) | an invalidation edits; it has flushed |
//! | [`withdraw_write`](NestedHooks::withdraw_write), [`arm`](NestedHooks::arm) | pages are write-protected, or armed for a log |
//! | [`next_used`](NestedHooks::next_used), [`young`](NestedHooks::young) | an aging pass |
//! | [`reclaim`](NestedHooks::reclaim) | table pages run short |
//! | [`leave`](NestedHooks::leave) | a vCPU moves to another address space, or is dropped |
//! | [`stats`](NestedHooks::stats), [`pages`](NestedHooks::pages) | statistics |
//!
//! A hook that takes something from nested guests owes it by [`Owed::owe_nested`]; the flush of the debt pays. Without the feature
//! `nested` the hooks are those of `()`: they do nothing, and the engine's code is the same as without them.

use crate::notify::begun::{Begun, Extent};
use crate::sync::mode::{Edits, Mode};
use crate::tlb::debt::Owed;
use crate::{Format, Gfn, Host, NestedStats, Span, Vcpu, Vm, Walk};

/// The hooks of this build.
#[cfg(feature = "nested")]
pub(crate) type Nested = crate::shadows::Shadowed;
/// The hooks of this build.
#[cfg(not(feature = "nested"))]
pub(crate) type Nested = ();

/// The state of nested guests.
pub(crate) trait NestedState {
    /// Of a VM: whether a nested guest has ever run.
    type OfVm: Default;
    /// Of an address space.
    type OfSpace<F>: Default;
    /// Of a vCPU.
    type OfVcpu: Default;
}

/// The calls of the engine to nested guests. The defaults are those of a build without them.
#[allow(unused_variables)]
pub(crate) trait NestedHooks<F: Format, H: Host>: NestedState {
    /// Whether a nested guest has ever run.
    fn has_run(vm: &Vm<F, H>) -> bool {
        false
    }

    /// Zaps what nested guests map of the frames in `extent` of an announced invalidation. If it `defers`, leaves for
    /// which there is no table page stay, and the reserve is short.
    fn reach(begun: &mut Begun<'_, F, H>, extent: &Extent<'_>, defers: bool) {}

    /// The flush of an invalidation that has reached all of its range is paid.
    fn forget(begun: &mut Begun<'_, F, H>) {}

    /// Takes the write permission from what nested guests map of `gfns`, with yields of the walk.
    fn withdraw_write<M: Edits>(walk: &mut Walk<'_, F, H, M>, gfns: Span<Gfn>, owed: &mut Owed) {}

    /// The same for the pages whose bits are set in `words`, the first of which is frame `first`, without a yield. The
    /// caller owes the flush.
    fn arm<M: Edits>(walk: &Walk<'_, F, H, M>, first: Gfn, words: &[u64]) {}

    /// Looks for the first 2 MiB of `gfns` of which a nested guest may have a page. Returns them, or the frame up to
    /// which there are none; `None` in a VM without nested guests.
    fn next_used<M: Mode>(walk: &Walk<'_, F, H, M>, gfns: Span<Gfn>) -> Option<Result<Span<Gfn>, Gfn>> {
        None
    }

    /// Returns a bit for each of `gfns`, frames of one 2 MiB, that a nested guest has accessed since its bit was
    /// cleared.
    fn young<M: Mode>(walk: &Walk<'_, F, H, M>, gfns: Span<Gfn>, clears: bool) -> [u64; 8] {
        [0; 8]
    }

    /// Reclaims table pages: those that no vCPU has a hold on, or, with `held`, some cold ones of the others. Returns the
    /// number of subtrees.
    fn reclaim(vm: &Vm<F, H>, held: bool) -> u64 {
        0
    }

    /// Gives up a vCPU's part of nested guests.
    fn leave(vcpu: &mut Vcpu<'_, F, H>) {}

    /// Returns the counters of nested guests.
    fn stats(vm: &Vm<F, H>) -> NestedStats {
        NestedStats::default()
    }

    /// Returns the number of table pages of nested guests.
    fn pages(vm: &Vm<F, H>) -> u64 {
        0
    }
}

impl NestedState for () {
    type OfVm = ();
    type OfSpace<F> = ();
    type OfVcpu = ();
}

impl<F: Format, H: Host> NestedHooks<F, H> for () {}
