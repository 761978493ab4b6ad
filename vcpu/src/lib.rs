//! Software vCPUs that really cache translations, and the guests that run on them.
//!
//! The engine's claim is that no vCPU ever uses a page that the host has taken back. Nothing proves a flush to be
//! needed like a TLB that holds on to what it was told; so this crate has one, with everything around it:
//!
//! | file | idea |
//! |---|---|
//! | [`cpu`] | a vCPU on an OS thread: guest mode, faults, answers |
//! | [`processor`] | processors, shared by more vCPUs than there are processors |
//! | [`tlb`], [`psc`] | what it caches: translations, links |
//! | [`walker`] | what it does on a miss: the walk of the hardware, Accessed and Dirty included |
//! | [`window`] | where it sees physical memory |
//! | [`guest`] | what runs on it: a trace's replay, random patterns |
//! | [`nested`] | a hypervisor in the guest, with its guest |
//! | [`trace`] | traces of real programs, as a stream |
//! | [`oracle`] | what every byte should be |

pub mod cpu;
pub mod guest;
pub mod nested;
pub mod oracle;
pub mod processor;
pub mod psc;
pub mod tlb;
pub mod trace;
pub mod walker;
pub mod window;

pub use cpu::{Cpu, Exit};
pub use processor::{Processor, Tag};
pub use window::Window;
