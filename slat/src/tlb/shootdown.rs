//! The shootdown: a numbered request, answered by each vCPU that is in guest mode.
//!
//! Flushes of a VM are numbered by one generation; a ring keeps the range of each of the last 64. A vCPU
//! remembers the last generation that it has carried out, and catches up range by range, or all at once where
//! the ring has moved on.
//!
//! ```text
//! flusher                                  vCPU
//! write ring[g]; generation := g           enter: mode := Guest
//! fence ───────────────────────────────── fence
//! mode == Guest and seen < g ?             generation != seen ?  flush, seen := generation
//!   kicked := true, interrupt it           hold interrupts; kicked ?  go back and enter again
//!   wait for seen ≥ g or mode Out          … guest runs; interrupted ?  out; or polls kicked:  flush, seen := generation
//! ```
//! One of the two sees the other: a flusher that misses the mode is one whose generation the vCPU sees on entry. An
//! interrupt that comes before interrupts are held is lost, since the handler has nothing to bring out of the guest. Its
//! flusher has said `kicked` before, so the vCPU goes back. One that comes later waits, and brings the guest out.
//! Flusher and vCPU each pay for a fence. The read side's asymmetric barrier would be wrong here: an entry into the guest costs a
//! thousand times a fence, so it need not be spared, and a flush would cost a system call.
//!
//! Where hardware broadcasts flushes, the host does it, and no vCPU is asked ([`Tlb::is_broadcast`]): nothing is numbered,
//! since vCPUs that are out have forgotten too. A broadcast loads no root. So while one is being replaced, which
//! `roots` counts, flushes kick: a thread that has met a hole of the new root finds the count.

use super::super::table::retire::{Flushed, Unlinked};
use crate::addr::{Gfn, Position, Span};
use crate::host::VcpuId;
use crate::sync::prim::{
    AcqRel, Acquire, AtomicBool, AtomicU8, AtomicU64, Padded, Patience, Relaxed, Release, SeqCst, fence,
    fence_after_rmw,
};
use crate::sync::tally::{Attempts, RetryCause};
use crate::tlb::ByCause;
use alloc::boxed::Box;

/// The number of a processor, for [`Translations::cpu`]. No other processor has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuId(pub u64);

/// What a processor caches, told what to forget: the TLB of a software vCPU, or a wrapper of INVEPT / INVLPGA / TLBI /
/// HFENCE on the processor that this thread is on. Where a processor tells translations apart by a tag (ASID, VMID), the
/// vCPUs under one tag are in one address space: a tag for each vCPU, or for each [`SpaceId`](crate::SpaceId) of the VM.
///
/// ```
/// use slat::{Gfn, Hva, Span, Translations};
/// use std::collections::BTreeMap;
///
/// /// What a software vCPU has cached: host addresses by guest frame.
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
    /// The processor whose translations these are. A vCPU that enters the guest on another processor than the last time
    /// makes it forget everything first: translations from an earlier stay, before flushes that the vCPU carried out
    /// elsewhere, may be left there.
    ///
    /// The default is one number for all. It is right where each vCPU has translations of its own that go where it goes
    /// (a software vCPU), and where each vCPU stays on one processor. A hypervisor that lets vCPUs migrate must return
    /// the number of the processor that the calling thread is on, and pin the thread to it while the vCPU is in the
    /// guest.
    ///
    /// ```
    /// use slat::{CpuId, Gfn, Span, Translations};
    /// struct ThisCpu(CpuId); // made anew for each entry, by a thread that is pinned
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
    /// Forget everything, paging-structure caches included.
    fn flush_all(&mut self);
    /// Forget at least every translation of these frames, at every page size, and every cached link above them.
    fn flush(&mut self, gfns: Span<Gfn>);
    /// Forget everything that came from shadow tables, for L2 ([`crate::nested`]), paging-structure caches included. Where L1 and L2 run
    /// under two tags, only that of L2. Everything, unless said otherwise.
    fn flush_nested(&mut self) {
        self.flush_all();
    }
}

const RING: u64 = if cfg!(loom) { 1 } else { 64 };
/// In the end of a range: L2's tag, too, and all of it.
const NESTED: u64 = 1 << 63;
/// In the place of a number: the range is being written.
const WRITING: u64 = u64::MAX;
/// More flushes behind than this: forget everything at once.
const CATCH_UP: u64 = 16;

/// The range of one numbered flush; `generation` is written last and names what the range belongs to. On a cache line of its
/// own: a write of the next one does not take this one's cache line from its readers.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Ranged {
    generation: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// What the flusher needs to know of one vCPU; and, on the other one of its two lines, what that vCPU counts.
#[derive(Debug, Default)]
pub(crate) struct VcpuTlb {
    in_guest: AtomicBool,
    /// Why it is to leave the guest, or to answer: [`KICKED`], [`READY`].
    wanted: AtomicU8,
    /// The last generation carried out.
    seen: AtomicU64,
    pub(crate) attempts: Attempts,
}

/// A flush waits for the vCPU.
const KICKED: u8 = 1;
/// A token that the vCPU waits for is ready ([`crate::waits`]). Only the vCPU takes that back: an entry does not.
const READY: u8 = 2;

impl VcpuTlb {
    /// Says that the vCPU is wanted, and then interrupts it: one that the interrupt does not bring out has not looked yet.
    pub(crate) fn kick(&self, interrupt: impl Fn()) {
        if seeded!(InterruptedFirst) {
            interrupt();
        }
        // ORDER(kick): Release; the generation before it is visible to a vCPU that sees the kick.
        // ORDER(kick-held): the store before the interrupt; the processor that takes the interrupt sees it (`Host::kick`).
        self.wanted.fetch_or(KICKED, Release);
        if !seeded!(InterruptedFirst) {
            interrupt();
        }
    }

    /// Says that a token is ready, and then interrupts the vCPU, as [`kick`](Self::kick) does.
    pub(crate) fn wake(&self, interrupt: impl Fn()) {
        // ORDER(wake): Release; the wait before it is found by the vCPU that sees this.
        self.wanted.fetch_or(READY, Release);
        interrupt();
    }

    /// Whether it has been woken since it last said that it sleeps. It may have taken all tokens that are ready by then.
    #[inline(always)]
    pub(crate) fn is_woken(&self) -> bool {
        self.wanted.load(Relaxed) & READY != 0
    }

    /// The vCPU is about to look which tokens are ready.
    pub(crate) fn sleeps(&self) {
        // ORDER(wake): Acquire; what was ready before the wake-up that this takes back is found.
        self.wanted.fetch_and(!READY, Acquire);
    }
}

/// See [`Tlb::replaces_root`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Replacing<'t>(&'t AtomicU64);

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        if !seeded!(RootUncounted) {
            // ORDER(root-count): Release; the answers of all vCPUs before it.
            self.0.fetch_sub(1, unless_seeded!(RootCountRelaxed, Release));
        }
    }
}

/// The flush side of one VM.
#[derive(Debug)]
pub(crate) struct Tlb {
    generation: Padded<AtomicU64>,
    ring: Box<[Ranged]>,
    vcpus: Box<[Padded<VcpuTlb>]>,
    pub(crate) by_cause: ByCause,
    /// Roots that are being replaced, and that not all vCPUs have loaded yet.
    roots: AtomicU64,
    /// Negative control: pretend to flush.
    sabotaged: bool,
}

impl Tlb {
    pub(crate) fn new(vcpus: usize, sabotaged: bool) -> Self {
        Self {
            generation: Padded::default(),
            ring: (0..RING).map(|_| Ranged::default()).collect(),
            vcpus: (0..vcpus).map(|_| Padded::default()).collect(),
            by_cause: ByCause::default(),
            roots: AtomicU64::new(0),
            sabotaged,
        }
    }

    pub(crate) fn vcpu(&self, id: VcpuId) -> &VcpuTlb {
        &self.vcpus[id.0 as usize]
    }

    /// The sum of one counter over all vCPUs.
    pub(crate) fn again(&self, why: RetryCause) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.wrapping_add(vcpu.attempts.get(why)))
    }

    /// A root is about to be replaced: until the guard is dropped, which is after its flush, no flush is broadcast.
    pub(crate) fn replaces_root(&self) -> Replacing<'_> {
        if !seeded!(RootUncounted) {
            // ORDER(root-count): before the new root is published, which carries it to each thread that finds that (`replace_root`).
            self.roots.fetch_add(1, Relaxed);
        }
        Replacing(&self.roots)
    }

    /// Whether a flush has been carried out by `broadcast`, on every processor. If not, all of it is still to be done.
    pub(crate) fn is_broadcast(&self, broadcast: impl FnOnce() -> bool) -> bool {
        // ORDER(root-count): Acquire; where no root is counted any more, all vCPUs have answered its flush before.
        !self.sabotaged && self.roots.load(Acquire) == 0 && broadcast()
    }

    /// Returns once no vCPU holds a translation of `gfns`, nor a link to a page of `pages`, from before the
    /// call. `kick` makes a vCPU leave the guest or answer soon.
    #[cfg(all(test, loom))]
    pub(crate) fn shoot_down(&self, gfns: Span<Gfn>, pages: Unlinked, kick: impl Fn(VcpuId)) -> Flushed {
        self.shoot_down_both((gfns, false), pages, kick)
    }

    /// Returns once no vCPU holds a translation of `gfns`, nor a link to a page of `pages`, from before the
    /// call; nor, where so said, any translation of L2. `kick` makes a vCPU leave the guest or answer soon.
    pub(crate) fn shoot_down_both(
        &self,
        (gfns, nested): (Span<Gfn>, bool),
        pages: Unlinked,
        kick: impl Fn(VcpuId),
    ) -> Flushed {
        if self.sabotaged {
            return pages.flushed();
        }
        let generation = self.number(gfns, nested);
        // ORDER(flush): the generation before the modes; pairs with the fence in `enter`.
        if !seeded!(ShootdownUnfenced) {
            fence(SeqCst);
        }
        let behind = |vcpu: &VcpuTlb| {
            // ORDER(flush-answer): Acquire pairs with the Release in `catch_up` and `leave`: the vCPU's last
            // access through an old translation is over before the page is given away.
            vcpu.in_guest.load(Acquire)
                && vcpu.seen.load(unless_seeded!(AnswersRelaxed, Acquire)) < generation
        };
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            if behind(vcpu) {
                vcpu.kick(|| kick(VcpuId(index as u32)));
            }
        }
        if seeded!(FlushUnanswered) {
            return pages.flushed();
        }
        for vcpu in &self.vcpus {
            let mut patience = Patience::default();
            while behind(vcpu) {
                patience.wait();
            }
        }
        pages.flushed()
    }

    /// Asks every vCPU to forget its translations of `gfns`, soon, and waits for none: for a caller that takes nothing away, and
    /// would only like to see the next access; and all that it has of L2, where so said. A vCPU that is out of the guest forgets when it enters.
    pub(crate) fn ask(&self, (gfns, nested): (Span<Gfn>, bool), kick: impl Fn(VcpuId)) {
        if self.sabotaged {
            return;
        }
        self.number(gfns, nested);
        // ORDER(flush): as in `shoot_down`.
        fence(SeqCst);
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            if vcpu.in_guest.load(Relaxed) {
                vcpu.kick(|| kick(VcpuId(index as u32)));
            }
        }
    }

    /// Numbers a flush, and writes down its range.
    fn number(&self, gfns: Span<Gfn>, nested: bool) -> u64 {
        // ORDER(flush): AcqRel puts the edits before the number; pairs with the Acquire of `catch_up`.
        let generation = self.generation.fetch_add(1, unless_seeded!(GenerationRelaxed, AcqRel)) + 1;
        let ranged = &self.ring[(generation % RING) as usize];
        // A reader that finds another number forgets everything. So it does where a writer was overtaken by a whole round
        // of the ring: the cell is the slow one's still, since two at once would leave a range that is neither's.
        // ORDER(flush-range): Acquire takes the cell over from its last writer.
        if ranged.generation.swap(WRITING, Acquire) != WRITING {
            // ORDER(flush-range): the mark before the range, the range before the number; pairs with `range_of`.
            if !seeded!(RangeWriteUnfenced) {
                fence(Release);
            }
            ranged.start.store(gfns.start.raw(), Relaxed);
            ranged.end.store(gfns.end.raw() | if nested { NESTED } else { 0 }, Relaxed);
            ranged.generation.store(generation, unless_seeded!(RangeRelaxed, Release));
        }
        generation
    }

    /// The vCPU enters the guest, having forgotten what was flushed while it was out.
    pub(crate) fn enter(&self, vcpu: &VcpuTlb, cache: &mut impl Translations) {
        vcpu.in_guest.swap(true, Relaxed);
        // ORDER(flush): `in_guest` before the generation's load; pairs with the fence in `shoot_down`.
        fence_after_rmw();
        if seeded!(EnterUnflushed) {
            // As if they were carried out.
            vcpu.wanted.fetch_and(!KICKED, Relaxed);
            return vcpu.seen.store(self.generation.load(Relaxed), Relaxed);
        }
        // A kick that is left from an earlier stay goes, too: where no kick is seen there is none to clear.
        let kicked = || vcpu.wanted.load(Relaxed) & KICKED != 0;
        // ORDER(flush): Acquire; the edits before the number, which a flush makes this vCPU forget.
        while kicked() || self.generation.load(Acquire) != vcpu.seen.load(Relaxed) {
            self.catch_up(vcpu, cache);
        }
    }

    /// The last step into the guest: interrupts are held, and then no kick has come since [`enter`](Self::enter). `None`
    /// where one has.
    #[inline(always)]
    pub(crate) fn go<K>(vcpu: &VcpuTlb, hold: impl FnOnce() -> K) -> Option<K> {
        let early = seeded!(LookedBeforeHeld) && Self::kicked(vcpu);
        let held = hold();
        // ORDER(kick-held): held before the load. An interrupt that was taken before carries its kick here; a later one waits.
        let kicked = if seeded!(LookedBeforeHeld) { early } else { Self::kicked(vcpu) };
        (!kicked || seeded!(GoUnlooked)).then_some(held)
    }

    /// The vCPU leaves the guest.
    pub(crate) fn leave(vcpu: &VcpuTlb) {
        // ORDER(flush-answer): every guest access before this store.
        vcpu.in_guest.store(false, unless_seeded!(LeaveRelaxed, Release));
    }

    /// Whether a flush waits for this vCPU, or a token is ready for it: polled by software vCPUs between accesses.
    #[inline(always)]
    pub(crate) fn kicked(vcpu: &VcpuTlb) -> bool {
        vcpu.wanted.load(Relaxed) != 0
    }

    /// Carries out every flush up to now and answers it.
    pub(crate) fn catch_up(&self, vcpu: &VcpuTlb, cache: &mut impl Translations) {
        let answered = if seeded!(ReadyForgotten) { KICKED | READY } else { KICKED };
        // ORDER(kick): Acquire; a kick that this clears had its generation set before.
        vcpu.wanted.fetch_and(!answered, unless_seeded!(KickRelaxed, Acquire));
        let now = self.generation.load(Acquire);
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
        // ORDER(flush-answer): Release; the flush, and every access before it, is over.
        vcpu.seen.store(now, unless_seeded!(FlushedRelaxed, Release));
    }

    fn range_of(&self, generation: u64) -> Option<(Span<Gfn>, bool)> {
        let ranged = &self.ring[(generation % RING) as usize];
        // ORDER(flush-range): Acquire before, fence after: pairs with `shoot_down`.
        let before = ranged.generation.load(Acquire);
        let (start, end) = (ranged.start.load(Relaxed), ranged.end.load(Relaxed));
        if !seeded!(RangeReadUnfenced) {
            fence(Acquire);
        }
        let gfns = Span::new(Gfn(start), Gfn(end & !NESTED));
        (before == generation && ranged.generation.load(Relaxed) == generation)
            .then_some((gfns, end & NESTED != 0))
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
