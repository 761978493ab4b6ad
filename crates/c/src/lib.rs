//! The C interface of [slat](https://docs.rs/slat), which `slat.h` declares. Rust programs use slat itself.
//!
//! | file | contents |
//! |---|---|
//! | `types` | numbers and structures that C and Rust exchange |
//! | `callbacks` | functions of the embedder, and their arguments |
//! | `status` | errors as one enumeration; no panic crosses the boundary |
//! | `any`, `any_hold`, `any_memory` | a VM of any format, and its vCPUs, invalidations and harvests, as trait objects |
//! | `c_host` | slat's host, by the functions of C |
//! | `thread` | the token of a thread |
//! | `held` | a value that one call at a time may use |
//! | `vm`, `slots`, `vcpu`, `populate`, `pending`, `change`, `harvest`, `rings`, `space_memory`, `tracking`, `hold` | the functions |
//! | `bare` | without `std`: memory and the end of a panic, by functions of the kernel |
//!
//! # Decisions
//! * **The format is chosen once**, when a VM is made. Each function calls a method of a trait object, which is one
//!   indirect call more than in Rust. Inside the engine only the host's own functions are indirect. A call also checks
//!   the calling thread, and takes its vCPU by a compare-and-swap.
//! * **A handle has a state.** In Rust the borrow checker refuses a fault on a vCPU in the guest, or a VM that is freed
//!   before its vCPUs. Here a call that does not fit the handle's state gets `SLAT_EBUSY`. C must guarantee the rest:
//!   pointers are those of live handles or of memory that may be read or written, and no handle is used while or after
//!   it is freed.
//! * **A thread has one token** (`slat_thread`), as in Rust. A call borrows it. The host's `resolve`, which may call
//!   slat again, gets a token of its own, because the outer one is in use.
//! * **Numbers are checked.** C passes an enumeration as a number, since an unknown value of an enumeration would be
//!   undefined behaviour.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(non_camel_case_types, reason = "the names are those of slat.h")]
#![allow(clippy::missing_safety_doc, reason = "the crate's header states the caller's promises once")]

extern crate alloc;

mod any;
mod any_hold;
mod any_memory;
#[cfg(not(feature = "std"))]
mod bare;
mod c_host;
mod callbacks;
mod change;
mod harvest;
mod held;
mod hold;
mod pending;
mod populate;
mod rings;
mod slots;
mod space_memory;
mod status;
mod thread;
mod tracking;
mod types;
mod vcpu;
mod vm;

pub use callbacks::*;
pub use change::*;
pub use harvest::*;
pub use hold::*;
pub use pending::*;
pub use populate::*;
pub use rings::*;
pub use slots::*;
pub use space_memory::*;
pub use status::*;
pub use thread::*;
pub use tracking::*;
pub use types::*;
pub use vcpu::*;
pub use vm::*;
