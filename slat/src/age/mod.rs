//! Aging: which pages a guest has accessed, found without a lock (the MGLRU aging series).
//!
//! ```text
//! root ─▶ link, Accessed: clear it, descend ─▶ leaf table: 64 entries at a time ─▶ bits ─▶ the caller
//!         link, not Accessed: nothing below     └ each young one: a CAS without A,
//!         was accessed, skip all of it              or a withdrawn word if there is no A
//! ```
//! | file | contents |
//! |---|---|
//! | [`AccessedPages`] | the result of a pass: up to 512 pages, one bit each |
//! | `scan` | 64 entries of a table → the young ones, by AVX2 or plain loads |
//! | `leaves` | leaf tables one by one or side by side, with prefetch of the next ones |
//! | `pass` | the iteration along a table: what to skip, clear and report, and when to yield |
//! | [`walk`](crate::walk) | a pass over a VM: over guest frames, or over the mappings of host memory |
//!
//! **Aging takes nothing away.** If hardware keeps Accessed bits, a pass clears them in place. If not, it withdraws a
//! young leaf as a [withdrawn](crate::table::Word::withdrawn) word, and the next access restores the leaf. Either is one
//! CAS, which gives up if the leaf changes meanwhile. There is no invalidation, no flush, and no lock: a pass runs in
//! [`Lockless`](crate::sync::mode::Lockless) walks, and delays no other thread.
//!
//! **Walks set the bits** of a format that has them: the hardware's, or [`Vcpu::access`](crate::Vcpu::access) for a guest
//! in software. The engine sets A only when it maps a page. Software that sets no bits takes a format without
//! them.
//!
//! **Bits may be wrong** either way, without harm. A TLB that holds a translation sets no bit. A TLB that holds a
//! *link* sets the leaf's bit but not the link's, and a pass then skips the whole table. A caller that must detect the
//! next access asks TLBs to forget, once after a pass, and waits for none of them
//! ([`SecondaryMmu::forget`](crate::SecondaryMmu::forget)). Dirty bits differ: an aging pass never clears them, and no
//! link has one. ([`crate::dirty`] iterates over leaves in the same way for the Dirty bit.)
//!
//! **Lockless, or a hook under a lock; never both.** The MGLRU aging series checks at run time that no range walk has
//! both. Here no check is needed: a lockless walk has no method that needs a lock, and a walk with a lock has no method
//! that ages.
//!
//! ```compile_fail,E0599
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! vm.memory().shared(idle).age(Span::new(Gfn(0), Gfn(512)), |_| ());
//! # }
//! ```
//! **Why a compare-and-swap, and not KVM's atomic *and*?** An absent entry has version bits in the place of A. A late
//! *and* would change a number that the protocol relies on.
//!
//! **Only links of leaf tables are cleared.** A pass yields, and the bits of a higher link are out of date after the
//! yield. A query of a single page ignores links.

mod accessed;
mod leaves;
pub(crate) mod pass;
pub(crate) mod scan;

pub use accessed::AccessedPages;
#[cfg(feature = "baselines")]
#[doc(hidden)]
pub use scan::Scan;
