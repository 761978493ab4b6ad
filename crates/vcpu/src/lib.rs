//! Software vCPUs that cache translations like hardware, and the guests that run on them.
//!
//! The engine guarantees that no vCPU ever uses a page that the host has taken back. A missing flush shows only
//! with a TLB that keeps stale translations, so this crate has one, with everything around it:
//!
//! | module | contents |
//! |---|---|
//! | [`cpu`] | a vCPU on an OS thread: guest mode, faults, answers |
//! | [`processor`] | processors, shared by more vCPUs than there are processors |
//! | [`tlb`], [`psc`] | cached translations and links |
//! | [`walker`] | the hardware's walk on a TLB miss, including Accessed and Dirty |
//! | [`window`] | physical memory as this process sees it |
//! | [`guest`] | guests: replay of a trace, random patterns |
//! | [`nested`] | a hypervisor in the guest, with its guest |
//! | [`trace`] | traces of real programs, as a stream |
//! | [`oracle`] | the expected value of every byte |

pub mod caches;
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
