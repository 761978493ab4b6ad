//! The shootdown: a numbered request, which each vCPU in guest mode answers.
//!
//! One generation counter numbers the flushes of a VM. A ring keeps the ranges of the last 64. A vCPU remembers the
//! last generation that it has carried out. It catches up range by range, or all at once if the ring has overwritten a
//! range.
//!
//! ```text
//! flusher                                  vCPU
//! write ring[g]; generation := g           enter: mode := Guest
//! fence ───────────────────────────────── fence
//! mode == Guest and seen < g ?             generation != seen ?  flush, seen := generation
//!   kicked := true, interrupt it           block interrupts; kicked ?  go back and enter again
//!   wait for seen ≥ g or mode Out          … guest runs; interrupted ?  out; or polls kicked:  flush, seen := generation
//! ```
//! Either the flusher sees the mode, or the vCPU sees the generation on entry. An interrupt that arrives before the
//! vCPU blocks interrupts is lost, because no guest runs yet. Its flusher has set `kicked` before, so the vCPU goes
//! back. A later interrupt waits, and causes a VM exit.
//!
//! Flusher and vCPU each pay for a fence. The read side's asymmetric barrier would be wrong here. An entry into the
//! guest costs a thousand times as much as a fence, so saving the fence gains nothing, and each flush would cost a
//! system call.
//!
//! If hardware broadcasts flushes, the host does so, and no vCPU is kicked ([`Tlb::is_broadcast`]). Such a flush gets
//! no number, because vCPUs outside the guest have forgotten the translations, too. A broadcast loads no root. While a
//! root is being replaced, which `roots` counts, flushes therefore kick. A thread that has found a hole of the new root
//! sees the count.

use super::super::table::retire::{Flushed, Unlinked};
use crate::addr::{Gfn, Position, Span};
use crate::host::VcpuId;
use crate::sync::prim::{AtomicBool, AtomicU8, AtomicU64, Padded, Patience, Relaxed, fence_after_rmw};
use crate::sync::tally::{Attempts, NestedCount, RetryCause};
use crate::tlb::ByCause;
use alloc::boxed::Box;

/// The number of a processor, for [`Translations::cpu`]. Unique to the processor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuId(pub u64);

/// The translations cached by a processor: the TLB of a software vCPU, or a wrapper of INVEPT / INVLPGA / TLBI / HFENCE
/// on the current processor. If the processor tags translations (ASID, VMID), all vCPUs under one tag must be in one
/// address space: use a tag for each vCPU, or for each [`SpaceId`](crate::SpaceId) of the VM.
///
/// ```
/// use slat::{Gfn, Hva, Span, Translations};
/// use std::collections::BTreeMap;
///
/// /// The cache of a software vCPU: host addresses by guest frame.
/// struct SoftTlb(BTreeMap<Gfn, Hva>);
///
/// impl Translations for SoftTlb {
///     fn flush_all(&mut self) {
///         self.0.clear();
///     }
///     fn flush(&mut self, gfns: Span<Gfn>) {
///         self.0.retain(|&gfn, _| !gfns.contains(gfn));
///     }
/// }
///
/// let mut tlb = SoftTlb([(Gfn(1), Hva(0x1000)), (Gfn(2), Hva(0x2000))].into());
/// tlb.flush(Span::new(Gfn(2), Gfn(9)));
/// assert!(tlb.0.into_keys().eq([Gfn(1)]));
/// ```
pub trait Translations {
    /// The processor that holds these translations. A vCPU that enters the guest on another processor than last time
    /// first makes this one forget everything. The processor may still hold translations from the vCPU's earlier time
    /// there, which the vCPU has since flushed elsewhere.
    ///
    /// The default is one number for all processors. It is correct if each vCPU has its own translations that move with
    /// it (a software vCPU), or if each vCPU stays on one processor. A hypervisor that migrates vCPUs must return the
    /// number of the calling thread's processor, and pin the thread while the vCPU is in the guest.
    ///
    /// ```
    /// use slat::{CpuId, Gfn, Span, Translations};
    /// struct ThisCpu(CpuId); // made for each entry, by a pinned thread
    /// impl Translations for ThisCpu {
    ///     fn cpu(&self) -> CpuId {
    ///         self.0
    ///     }
    ///     fn flush_all(&mut self) { /* INVEPT, single-context */ }
    ///     fn flush(&mut self, _: Span<Gfn>) { /* INVEPT has no range */ }
    /// }
    /// ```
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
    /// Forgets everything, including paging-structure caches.
    fn flush_all(&mut self);
    /// Forgets at least every translation of these frames, of every page size, and every cached link above them.
    fn flush(&mut self, gfns: Span<Gfn>);
    /// Forgets everything that came from shadow tables, for L2 ([`crate::nested`]), including paging-structure caches.
    /// If L1 and L2 have different tags, only that of L2. The default forgets everything.
    fn flush_nested(&mut self) {
        self.flush_all();
    }
}

const RING: u64 = if cfg!(loom) { 1 } else { 64 };
/// Flag in the end of a range: also forget everything under L2's tag.
const NESTED: u64 = 1 << 63;
/// Instead of a number: a flusher is writing the range.
const WRITING: u64 = u64::MAX;
/// A vCPU that is more flushes behind than this forgets everything at once.
const CATCH_UP: u64 = 16;

/// The range of one numbered flush. `generation` is written last and names the flush of the range. On its own cache
/// line, so that writing the next range does not take this line from its readers.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Ranged {
    generation: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// The flusher's view of one vCPU; and the vCPU's counters, on the second of two lines.
#[derive(Debug, Default)]
pub(crate) struct VcpuTlb {
    in_guest: AtomicBool,
    /// Why the vCPU must leave the guest or answer: [`KICKED`], [`READY`].
    wanted: AtomicU8,
    /// The last generation that the vCPU has carried out.
    seen: AtomicU64,
    pub(crate) attempts: Attempts,
}

/// A flush waits for the vCPU.
const KICKED: u8 = 1;
/// A token that the vCPU waits for is ready ([`crate::waits`]). Only the vCPU clears this, and not by an entry.
const READY: u8 = 2;

impl VcpuTlb {
    /// Whether the vCPU is in the guest, and the last flush that it has answered.
    pub(super) fn place(&self) -> (bool, u64) {
        (self.in_guest.load(Relaxed), self.seen.load(Relaxed))
    }

    /// Marks the vCPU as kicked, and then interrupts it. A vCPU that the interrupt does not bring out checks the mark
    /// later.
    pub(crate) fn kick(&self, interrupt: impl Fn()) {
        // A vCPU that sees the kick sees the earlier generation.
        // ORDER(kick-held): the store before the interrupt; the processor that takes the interrupt sees the store
        // (`Host::kick`).
        self.wanted.fetch_or(KICKED, order!(kick.set, Release));
        interrupt();
    }

    /// Marks the vCPU as kicked again: it has cleared the mark, and could not answer.
    #[cold]
    pub(crate) fn has_not_answered(&self) {
        self.wanted.fetch_or(KICKED, Relaxed);
    }

    /// Marks a token as ready, and then interrupts the vCPU, as [`kick`](Self::kick) does.
    pub(crate) fn wake(&self, interrupt: impl Fn()) {
        // A vCPU that sees this finds the wait that became ready before.
        self.wanted.fetch_or(READY, order!(wake.set, Release));
        interrupt();
    }

    /// Whether the vCPU has been woken since it last called [`sleeps`](Self::sleeps). It may already have taken all
    /// ready tokens.
    #[inline(always)]
    pub(crate) fn is_woken(&self) -> bool {
        self.wanted.load(Relaxed) & READY != 0
    }

    /// Clears the wake-up before the vCPU checks which tokens are ready.
    pub(crate) fn sleeps(&self) {
        // The vCPU finds the tokens that became ready before the wake-up that this clears.
        self.wanted.fetch_and(!READY, order!(wake.clear, Acquire));
    }
}

/// The replacement of a root: see [`Tlb::replaces_root`].
#[must_use]
pub(crate) struct Replacing<'t>(&'t AtomicU64);

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        // The answers of all vCPUs come before.
        self.0.fetch_sub(1, order!(root_count.end, Release));
    }
}

/// The flush state of one VM.
#[derive(Debug)]
pub(crate) struct Tlb {
    pub(super) generation: Padded<AtomicU64>,
    ring: Box<[Ranged]>,
    pub(super) vcpus: Box<[Padded<VcpuTlb>]>,
    pub(crate) by_cause: ByCause,
    /// Number of roots that are being replaced, and that some vCPUs have not loaded yet.
    roots: AtomicU64,
}

impl Tlb {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self {
            generation: Padded::default(),
            ring: (0..RING).map(|_| Ranged::default()).collect(),
            vcpus: (0..vcpus).map(|_| Padded::default()).collect(),
            by_cause: ByCause::default(),
            roots: AtomicU64::new(0),
        }
    }

    pub(crate) fn vcpu(&self, id: VcpuId) -> &VcpuTlb {
        &self.vcpus[id.0 as usize]
    }

    /// The sum of one counter over all vCPUs.
    pub(crate) fn again(&self, why: RetryCause) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.wrapping_add(vcpu.attempts.get(why)))
    }

    /// The sum of one counter of nested guests over all vCPUs.
    pub(crate) fn nested(&self, what: NestedCount) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.wrapping_add(vcpu.attempts.get_nested(what)))
    }

    /// Announces the replacement of a root. Until the guard is dropped, after the flush, no flush is broadcast.
    pub(crate) fn replaces_root(&self) -> Replacing<'_> {
        // ORDER(root-count): before the new root is published. A thread that finds the root sees the count
        // (`replace_root`).
        self.roots.fetch_add(1, Relaxed);
        Replacing(&self.roots)
    }

    /// Whether `broadcast` has flushed on every processor. If not, the whole flush is still owed.
    pub(crate) fn is_broadcast(&self, broadcast: impl FnOnce() -> bool) -> bool {
        // If no root is counted, all vCPUs have answered the flushes of earlier ones.
        self.roots.load(order!(root_count.look, Acquire)) == 0 && broadcast()
    }

    /// Returns when no vCPU holds a translation of `gfns`, or a link to a page of `pages`, from before the call. `kick`
    /// makes a vCPU leave the guest or answer soon.
    #[cfg(all(test, feature = "std", not(shuttle)))]
    pub(crate) fn shoot_down(&self, gfns: Span<Gfn>, pages: Unlinked, kick: impl Fn(VcpuId)) -> Flushed {
        self.shoot_down_both((gfns, false), pages, kick)
    }

    /// Returns when no vCPU holds a translation of `gfns`, or a link to a page of `pages`, from before the call; with
    /// `nested`, also no translation of L2. `kick` makes a vCPU leave the guest or answer soon.
    pub(crate) fn shoot_down_both(
        &self,
        (gfns, nested): (Span<Gfn>, bool),
        pages: Unlinked,
        kick: impl Fn(VcpuId),
    ) -> Flushed {
        let generation = self.number(gfns, nested);
        // The generation before the modes; pairs with the fence in `enter`.
        fence!(flush.modes);
        let behind = |vcpu: &VcpuTlb| {
            // Pairs with the Release in `leave` and `catch_up`. The vCPU's last access through an old translation is
            // over before the page is given away.
            vcpu.in_guest.load(order!(flush_answer.out, Acquire))
                && vcpu.seen.load(order!(flush_answer.seen, Acquire)) < generation
        };
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            if behind(vcpu) {
                vcpu.kick(|| kick(VcpuId(index as u32)));
            }
        }
        for vcpu in &self.vcpus {
            let mut patience = Patience::default();
            while behind(vcpu) {
                patience.wait();
            }
        }
        pages.flushed()
    }

    /// Asks every vCPU to forget its translations of `gfns` soon, and waits for none; with `nested`, also everything of
    /// L2. For callers that take nothing away and only want to detect the next access. A vCPU outside the guest forgets
    /// when it enters.
    pub(crate) fn ask(&self, (gfns, nested): (Span<Gfn>, bool), kick: impl Fn(VcpuId)) {
        self.number(gfns, nested);
        // As in `shoot_down_both`.
        fence!(flush.asked);
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            if vcpu.in_guest.load(Relaxed) {
                vcpu.kick(|| kick(VcpuId(index as u32)));
            }
        }
    }

    /// Numbers a flush, and records its range.
    fn number(&self, gfns: Span<Gfn>, nested: bool) -> u64 {
        // The edits before the number; pairs with the Acquire of `catch_up`.
        let generation = self.generation.fetch_add(1, order!(flush.number, AcqRel)) + 1;
        let ranged = &self.ring[(generation % RING) as usize];
        // A reader that finds another number forgets everything. That also covers a slow writer that others overtook by
        // a whole round of the ring. It keeps the cell, because two writers at once would leave a range that belongs to
        // neither. Acquire takes the cell over from its last writer.
        if ranged.generation.swap(WRITING, order!(flush_range.claim, Acquire)) != WRITING {
            // The mark before the range, the range before the number; pairs with `range_of`.
            fence!(flush_range.write, Release);
            ranged.start.store(gfns.start.raw(), Relaxed);
            ranged.end.store(gfns.end.raw() | if nested { NESTED } else { 0 }, Relaxed);
            ranged.generation.store(generation, order!(flush_range.end, Release));
        }
        generation
    }

    /// Enters the guest, after forgetting what was flushed while the vCPU was outside.
    pub(crate) fn enter(&self, vcpu: &VcpuTlb, cache: &mut impl Translations) {
        vcpu.in_guest.swap(true, Relaxed);
        // ORDER(flush): `in_guest` before the load of the generation; pairs with the fence in `shoot_down_both`.
        fence_after_rmw();
        // This also clears a kick that is left from an earlier stay; if no kick is visible, there is none to clear.
        let kicked = || vcpu.wanted.load(Relaxed) & KICKED != 0;
        // Relaxed, because `catch_up` has read by Acquire each number that is in `seen`.
        while kicked() || self.generation.load(Relaxed) != vcpu.seen.load(Relaxed) {
            self.catch_up(vcpu, cache);
        }
    }

    /// Takes the last step into the guest: blocks interrupts, and then checks for kicks since [`enter`](Self::enter).
    /// Returns an error after a kick. The caller then leaves the guest before it drops the block.
    #[inline(always)]
    pub(crate) fn go<K>(vcpu: &VcpuTlb, hold: impl FnOnce() -> K) -> Result<K, K> {
        let held = hold();
        // ORDER(kick-held): blocked before the load. An interrupt taken earlier made its kick visible here; a later one
        // waits.
        if Self::kicked(vcpu) { Err(held) } else { Ok(held) }
    }

    /// Leaves the guest.
    pub(crate) fn leave(vcpu: &VcpuTlb) {
        // Every guest access before this store.
        vcpu.in_guest.store(false, order!(flush_answer.leave, Release));
    }

    /// Whether a flush waits for this vCPU, or a token is ready for it. Software vCPUs poll this between accesses.
    #[inline(always)]
    pub(crate) fn kicked(vcpu: &VcpuTlb) -> bool {
        vcpu.wanted.load(Relaxed) != 0
    }

    /// Carries out every flush up to now, and answers.
    pub(crate) fn catch_up(&self, vcpu: &VcpuTlb, cache: &mut impl Translations) {
        // A kick that this clears had set its generation before.
        vcpu.wanted.fetch_and(!KICKED, order!(kick.clear, Acquire));
        // The edits come before the number, whose flush this vCPU carries out.
        let now = self.generation.load(order!(flush.catch_up, Acquire));
        let seen = vcpu.seen.load(Relaxed);
        if now == seen {
            return;
        }
        if now - seen > CATCH_UP {
            cache.flush_all();
        } else {
            for generation in seen + 1..=now {
                let Some((gfns, nested)) = self.range_of(generation) else {
                    cache.flush_all();
                    break;
                };
                if !gfns.is_empty() {
                    cache.flush(gfns);
                }
                if nested {
                    cache.flush_nested();
                }
            }
        }
        // The flush, and every access before it, is over.
        vcpu.seen.store(now, order!(flush_answer.flushed, Release));
    }

    fn range_of(&self, generation: u64) -> Option<(Span<Gfn>, bool)> {
        let ranged = &self.ring[(generation % RING) as usize];
        // Acquire before, fence after; pairs with `number`.
        let before = ranged.generation.load(order!(flush_range.begin, Acquire));
        let (start, end) = (ranged.start.load(Relaxed), ranged.end.load(Relaxed));
        fence!(flush_range.read, Acquire);
        let gfns = Span::new(Gfn(start), Gfn(end & !NESTED));
        (before == generation && ranged.generation.load(Relaxed) == generation)
            .then_some((gfns, end & NESTED != 0))
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
