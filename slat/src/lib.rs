//! Second-level address translation: the memory-virtualization engine of a hypervisor.
//!
//! Memslots map a guest's frames to host addresses, and the host's primary MMU maps those to frames. This crate keeps the
//! product of both in a page table, which hardware or a software vCPU walks. The table stays correct while hundreds of
//! vCPUs fault in parallel and the host changes its mappings.
//!
//! **You supply** a [`Host`], which says which frame is behind a host address, and kicks vCPUs; a [`Processor`], which
//! runs the guest and forgets [`Translations`]; and a page-table [`Format`] from [`table::formats`]. Tables are on the heap
//! unless the host lends memory ([`TableMemory`]).
//!
//! **You call**
//!
//! | for | call |
//! |---|---|
//! | a VM and its vCPUs | [`Vm::builder`], [`Vm::vcpu`] |
//! | memslots, dirty logs, aging, held frames | the functions of [`GuestSpace`], which [`Vm::memory`] returns |
//! | the guest, until its next exit | [`Vcpu::run`]; in single steps [`Vcpu::enter`] |
//! | a second-level fault | [`Vcpu::fault`]; its result is the vCPU's [`Next`] step |
//! | a change of the host's own table | [`Vm::change`]; single pages of a range [`Vm::change_pages`] |
//! | a thread that may sleep | [`Idle::take`] |
//!
//! ```
//! use slat::{table::formats::Ept4, *};
//!
//! /// The frame is always the address.
//! struct Identity;
//! impl Host for Identity {
//!     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
//!         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
//!     }
//! }
//!
//! // Build a VM: the page-table format is a type.
//! let mut idle = Idle::take().unwrap(); // proof that this thread may sleep
//! let vm = Vm::<Ept4, _>::builder(Identity).vcpus(4).build()?;
//! vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
//!
//! // A vCPU faults: slot → host → install.
//! let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
//! let fault = Fault { gpa: Gpa(0x5123), access: Access::Write };
//! assert_eq!(vcpu.fault(&mut idle, fault)?, Next::Resume(Resume::Mapped(Level::K4)));
//! assert_eq!(vm.memory().translate(&mut idle, Gfn(5)).unwrap().leaf.pfn, Pfn(0x40005));
//!
//! // The host unmaps the page. The guest loses it before the host does.
//! let page = Span::new(Hva(0x4000_5000), Hva(0x4000_6000));
//! vm.change(&mut idle, page, Why::Unmap, |_| {
//!     // after at most one shootdown: the host changes its own tables
//! });
//! assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `std` (default) | thread tokens, process-wide barriers, parking locks; without it the crate is `no_std` |
//! | `nested` (default) | [`nested`]; without it a small image has 20 KB less text, and [`Stats::nested`] stays zero |
//! | `serde` | `serde::Serialize` of the [statistics](stats) |
//! | `oracle` | `Builder::checked`: reports calls of the embedder that break the contract |
//! | `baselines` | for measurements, KVM's former locks: no part of the API; each walk then reads the policy, also of a VM without one |
//!
//! **The book**, `book/` in the repository, begins with a first day. It has the glossary, the protocol, and the patch
//! series that modules name.
#![cfg_attr(not(docsrs), doc = "`mdbook build book` makes it [beside these pages](../../book/index.html).")]
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs)]
// The engine's functions for nested guests alone stay where they belong. A build with them finds what is really dead.
#![cfg_attr(not(feature = "nested"), allow(dead_code))]
// So do links to the module.
#![cfg_attr(not(feature = "nested"), allow(rustdoc::broken_intra_doc_links))]

extern crate alloc;

/// An ordering, and its name: `order!(PAIR.SIDE, Release)`. `sync/orderings.md` has a row for each pair. The name is for
/// `cargo xtask mutants`, which weakens the ordering to `Relaxed`.
macro_rules! order {
    ($pair:ident . $side:ident, $order:ident) => {
        $crate::sync::prim::$order
    };
}

/// A fence, a full one unless it says otherwise, and its name, as in [`order`]: `fence!(PAIR.SIDE)`. `cargo xtask mutants`
/// leaves it out.
macro_rules! fence {
    ($pair:ident . $side:ident) => {
        fence!($pair.$side, SeqCst)
    };
    ($pair:ident . $side:ident, $order:ident) => {
        $crate::sync::prim::fence($crate::sync::prim::$order)
    };
}

/// An enumeration whose variants have names.
macro_rules! named {
    ($(#[$about:meta])* pub enum $type:ident { $($(#[$doc:meta])* $one:ident $name:literal,)* }) => {
        $(#[$about])*
        pub enum $type { $($(#[$doc])* $one,)* }

        impl $type {
            /// All variants, in the order of tables and counts.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$one),*];

            /// The variant's name, as reports print it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$one => $name,)* }
            }
        }
    };
}

/// A state whose named counters are less those of an earlier one. The other fields follow, so that none is forgotten.
macro_rules! since {
    ($now:ident, $earlier:ident: $($counter:ident),*; $($other:tt)*) => {
        Self { $($counter: $now.$counter.saturating_sub($earlier.$counter),)* $($other)* }
    };
}

/// Implements `Display` and `Error` for an error type, with one message for each case; on request `errno`, too.
macro_rules! errors {
    ($error:ident, errno: $($case:pat => $number:literal, $said:literal $(, $value:expr)*;)*) => {
        impl $error {
            /// Returns KVM's errno.
            #[allow(unused_variables, reason = "the messages have them")]
            pub const fn errno(&self) -> i32 {
                match *self { $($case => $number,)* }
            }
        }

        errors! { $error: $($case => $said $(, $value)*;)* }
    };
    ($error:ident: $($case:pat => $said:literal $(, $value:expr)*;)*) => {
        impl core::fmt::Display for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self { $($case => write!(f, $said $(, $value)*),)* }
            }
        }

        impl core::error::Error for $error {}
    };
}

mod active;
pub mod age;
mod budget;
mod callbacks;
pub mod dirty;
mod dirty_log;
mod fallible;
pub mod fault;
mod guest_memory;
pub mod guest_space;
pub mod held;
#[cfg(all(test, not(any(loom, shuttle))))]
mod history_tests;
mod hooks;
pub mod host;
pub mod huge;
#[cfg(not(all(feature = "std", any(test, explored))))]
mod inject;
#[cfg(all(feature = "std", any(test, explored)))]
#[doc(hidden)]
pub mod inject;
#[cfg(all(test, feature = "nested", not(any(loom, shuttle))))]
mod inject_tests;
mod lent;
mod loaded;
#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;
pub mod map;
mod memo;
pub mod memslots;
#[cfg(test)]
mod near_edges;
#[cfg(feature = "nested")]
pub mod nested;
pub mod notify;
#[cfg(not(feature = "oracle"))]
mod oracle;
#[cfg(feature = "oracle")]
pub mod oracle;
mod owned;
#[cfg(feature = "nested")]
mod shadows;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
pub mod slots;
mod space;
pub mod stats;
pub mod sync;
pub mod table;
pub mod tlb;
pub mod trace;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tries;
mod vcpu;
mod version;
pub mod vm;
mod waits;
pub mod walk;
mod why;
pub mod writes;

#[doc(inline)]
pub use slat_slots::{MemoryType, addr};

#[doc(inline)]
#[cfg(feature = "baselines")]
pub use sync::baselines;
#[doc(inline)]
pub use {
    addr::{Gfn, Gpa, Gva, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, PrivateMemory, Span},
    age::AccessedPages,
    dirty::{DirtyError, DirtyLog, DirtyPage, DirtyWord, Harvest, LogState, RingSize, Splitting, Track},
    fault::{Emulate, Fault, FaultError, Leave, Next, Population, Prefault, Resume},
    guest_memory::{GuestMemoryError, NoGuestMemory},
    guest_space::GuestSpace,
    held::{Held, HeldForHardware, HeldUse, HoldError},
    host::{Host, HostError, HostPage, Token, VcpuId},
    notify::{Again, Applied, Event, Invalidation, Pages, SecondaryMmu, Young},
    owned::OwnedVcpu,
    slots::{CommitError, Region, Slot, SlotError, SlotId, SpaceId},
    stats::{Flushes, FlushesByCause, NestedStats, Retries, Stats, TablePages},
    sync::idle::Idle,
    table::{Access, Format, Leaf, NoMemory, Perms, TableMemory, Word},
    tlb::{Cause, CpuId, FlushDebt, Translations, Unanswered},
    vcpu::entry::{self, InGuest},
    vcpu::{Processor, Vcpu},
    vm::{Builder, Vm},
    walk::{Mapping, Walk},
    why::{PageWhy, Reason, Why},
    writes::{TrackedStore, WriteListener, WriteTracking},
};
