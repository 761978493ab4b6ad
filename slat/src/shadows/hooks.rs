//! The hooks of a build with nested guests. Invalidations are in [`invalidate`](super::invalidate).

use super::{Reach, Shadows, SplitPages, Stretches, VcpuShadows};
use crate::hooks::{NestedHooks, NestedState};
use crate::notify::begun::{Begun, Extent};
use crate::slots::bitmap::WORD;
use crate::sync::mode::{Edits, Mode};
use crate::sync::once::Once;
use crate::sync::prim::{AtomicBool, Relaxed};
use crate::sync::tally::NestedCount;
use crate::tlb::debt::Owed;
use crate::{Cause, FlushDebt, Format, Gfn, Host, NestedStats, Reason, Span, Vcpu, Vm, Walk};
use alloc::boxed::Box;

/// Nested guests by [`Shadows`].
pub(crate) struct Shadowed;

impl NestedState for Shadowed {
    /// On a cache line that faults read anyway.
    type OfVm = AtomicBool;
    /// Made with the first nested guest.
    type OfSpace<F> = Once<Shadows<F>>;
    /// Made when the vCPU first runs L2.
    type OfVcpu = Option<Box<VcpuShadows>>;
}

impl<F: Format, H: Host> NestedHooks<F, H> for Shadowed {
    #[inline(always)]
    fn has_run(vm: &Vm<F, H>) -> bool {
        // Set before the shadows, and so before the first hint. If a fault with a hint does not see an invalidation,
        // the invalidation sees the hint, and so this flag.
        vm.nested.load(Relaxed)
    }

    #[inline(always)]
    fn reach(begun: &mut Begun<'_, F, H>, extent: &Extent<'_>, defers: bool) {
        if begun.target.vm.runs_nested() {
            begun.reach_all_spaces(extent, defers);
        }
    }

    fn forget(begun: &mut Begun<'_, F, H>) {
        begun.forget_nested();
    }

    #[inline(always)]
    fn withdraw_write<M: Edits>(walk: &mut Walk<'_, F, H, M>, gfns: Span<Gfn>, owed: &mut Owed) {
        if let Some(shadows) = walk.space.nested.get() {
            withdraw_write_from(shadows, walk, gfns, owed);
        }
    }

    fn arm<M: Edits>(walk: &Walk<'_, F, H, M>, first: Gfn, words: &[u64]) {
        if let Some(shadows) = walk.space.nested.get() {
            arm_in(shadows, walk, first, words);
        }
    }

    #[inline(always)]
    fn next_used<M: Mode>(walk: &Walk<'_, F, H, M>, gfns: Span<Gfn>) -> Option<Result<Span<Gfn>, Gfn>> {
        if !walk.vm.runs_nested() || gfns.is_empty() {
            return None;
        }
        Some(walk.space.nested.get()?.next_used(walk.vm.tables(), gfns))
    }

    fn young<M: Mode>(walk: &Walk<'_, F, H, M>, gfns: Span<Gfn>, clears: bool) -> [u64; 8] {
        let shadows = walk.space.nested.get();
        shadows.map_or([0; 8], |shadows| shadows.young(walk.vm.tables(), gfns, clears))
    }

    fn reclaim(vm: &Vm<F, H>, held: bool) -> u64 {
        if !vm.runs_nested() {
            return 0;
        }
        let flush = || {
            let mut owed = Owed::default();
            owed.owe_nested();
            FlushDebt::new(vm, owed, Cause::Change(Reason::Unmap)).settle();
        };
        let tables = (vm.tables(), &vm.pool, &vm.active);
        let reclaim = |shadows: &Shadows<F>| shadows.reclaim(tables, held, flush, || vm.reads.synchronize());
        all(vm).map(reclaim).find(|subtrees| *subtrees > 0).unwrap_or(0)
    }

    fn leave(vcpu: &mut Vcpu<'_, F, H>) {
        let (Some(mut state), Some(shadows)) = (vcpu.nested.take(), vcpu.space.nested.get()) else { return };
        if let Some(held) = state.held.take() {
            shadows.let_go(held);
        }
        shadows.give_back(&mut state.spare);
        vcpu.loaded.forget_l2();
    }

    fn stats(vm: &Vm<F, H>) -> NestedStats {
        let total = |what| vm.tlb.nested(what);
        let (shadows, flush_passes) =
            all(vm).map(Shadows::counts).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
        NestedStats {
            mapped_faults: total(NestedCount::Mapped),
            spurious_faults: total(NestedCount::Spurious),
            mmio_faults: total(NestedCount::Mmio),
            refused_faults: total(NestedCount::Refused),
            flush_passes,
            shadows,
        }
    }

    fn pages(vm: &Vm<F, H>) -> u64 {
        all(vm).map(|shadows| shadows.pages(vm.tables())).sum()
    }
}

/// Returns the shadows of all address spaces.
fn all<F: Format, H: Host>(vm: &Vm<F, H>) -> impl Iterator<Item = &Shadows<F>> {
    vm.spaces.iter().filter_map(|space| space.nested.get())
}

#[cold]
fn withdraw_write_from<F: Format, H: Host, M: Edits>(
    shadows: &Shadows<F>,
    walk: &mut Walk<'_, F, H, M>,
    gfns: Span<Gfn>,
    owed: &mut Owed,
) {
    let (vm, how, mut left) = (walk.vm, Reach::WithdrawWrite, Stretches::new(gfns));
    while !left.is_over() {
        walk.yield_section();
        if shadows.reach(vm.tables(), &vm.active, (&mut left, gfns), how, &mut SplitPages::none()) {
            owed.owe_nested();
        }
    }
}

#[cold]
fn arm_in<F: Format, H: Host, M: Edits>(
    shadows: &Shadows<F>,
    walk: &Walk<'_, F, H, M>,
    first: Gfn,
    words: &[u64],
) {
    let (memory, active) = (walk.vm.tables(), &walk.vm.active);
    for (nth, &word) in (0..).zip(words) {
        let (mut left, mut page) = (word, first + nth * WORD);
        while left != 0 {
            // The next pages that follow each other.
            let skip = left.trailing_zeros();
            let run = (left >> skip).trailing_ones();
            let pages = Span::sized(page + u64::from(skip), run.into());
            shadows.reach_whole(memory, active, pages, Reach::WithdrawWrite, &mut SplitPages::none());
            page = pages.end;
            left = left.checked_shr(skip + run).unwrap_or(0);
        }
    }
}
