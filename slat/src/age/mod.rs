//! Which pages a guest has accessed, asked without a lock (the MGLRU aging series).
//!
//! ```text
//! root ─▶ link, Accessed: clear it, go down ─▶ leaf table: 64 entries at a time ─▶ bits ─▶ the caller
//!         link, not Accessed: nothing below     └ each young one: a CAS without A,
//!         was used, pass over all of it             or a tracked word where there is no A
//! ```
//! | file | idea |
//! |---|---|
//! | [`AccessedPages`] | what a pass tells: up to 512 pages, a bit each |
//! | `scan` | 64 entries of a table → the young ones: AVX2, or plain loads |
//! | `leaves` | leaf tables one by one or side by side, and the next ones on their way |
//! | `pass` | along a table: what to pass over, what to clear and tell, when to rest |
//! | [`walk`](crate::walk) | a pass over a VM: over guest frames, or over what memslots map of host memory |
//!
//! **Aging takes nothing away.** Where hardware keeps Accessed bits they are cleared in place; where it does not, a young
//! leaf is withdrawn as a [tracked](crate::table::Word::tracked) word and the next access gives it back. Either is one CAS,
//! which gives up politely: a leaf that changes meanwhile is left to the thread that changes it. So there is no invalidation,
//! no flush, and no lock: a pass runs in [`Lockless`](crate::sync::mode::Lockless) walks, and holds up no other thread.
//!
//! **Bits may be wrong**, one way or the other, without harm: a TLB that holds a translation sets no bit; one
//! that holds a *link* sets the leaf's and not the link's, and the leaf is passed over with all its table. A caller that wants
//! the next access to be noticed asks TLBs to forget, once after a pass, and waits for none of them
//! ([`SecondaryMmu::forget`](crate::SecondaryMmu::forget)). Dirty is
//! another matter: an aging pass never clears it, and no link is asked about it. ([`crate::dirty`] goes along leaves in the
//! same way for its own bit.)
//!
//! **Lockless, or a hook under a lock; never both.** The MGLRU aging series checks at run time that no range walk has both. Here there
//! is nothing to check: a lockless walk has no method that could need a lock, and a walk with a lock has none that ages.
//!
//! ```compile_fail,E0599
//! # use slat::*;
//! # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
//! vm.shared(idle).age(Span::new(Gfn(0), Gfn(512)), |_| ());
//! # }
//! ```
//! For measurements of "before", [`Builder::lockless_aging`](crate::vm::Builder::lockless_aging) puts the MMU lock of a
//! baseline policy back around each call.
//!
//! **Why a compare-and-swap, and not KVM's atomic *and*?** An absent entry has a version in A's place, and an *and* that comes late
//! would change a number that the protocol counts on.
//!
//! **Only links of leaf tables are cleared.** A pass rests, and what a higher link would say after the rest is out of date. Where
//! one page is asked about, no link is believed.

mod accessed;
mod leaves;
pub(crate) mod pass;
pub(crate) mod scan;

pub use accessed::AccessedPages;
#[doc(hidden)]
pub use scan::Scan;
