//! A simulated machine: any number of CPUs in virtual time, on one thread of this machine.
//!
//! Each CPU is a coroutine with a clock. Its operations cost time by a price list ([`Costs`]). Operations that
//! another CPU can see happen in the order of the clocks: before such an operation, every CPU whose clock is behind
//! runs first. So a program has one outcome, to the picosecond, independent of the load of this machine.
//!
//! ```
//! use slat_machine::{AtomicU64, Costs, Job, Ordering::Relaxed, run};
//!
//! let shared = AtomicU64::new(0);
//! let count = || for _ in 0..1000 { shared.fetch_add(1, Relaxed); };
//! let alone = run(&Costs::SERVER, vec![Job::new("counter", count)]);
//! let many = run(&Costs::SERVER, (0..64).map(|_| Job::new("counter", count)).collect());
//! assert_eq!(shared.load(Relaxed), 65_000);
//! // No CPU waits for a lock, but a line that all CPUs write is at one CPU at a time.
//! assert!(many.wall_ns > 100 * alone.wall_ns);
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `costs` | what each thing costs, and how that is known |
//! | `cpu` | clocks, and who goes on next |
//! | `lines` | cache lines: who has each, what it takes to get it, and which are fought over |
//! | `atomic` | `core`'s atomics, each operation an access to a line |
//! | `lock` | a mutex and a reader-writer lock, handed on in order of arrival |
//! | `acts` | what a CPU does besides: compute, sleep, kick, zero a page |
//! | `local` | what is a thread's own is a CPU's own here |
//! | `run` | coroutines, and what a run came to |
//! | `explore` | runs for correctness: the order is chosen by the caller, and each access is shown to it |
//!
//! **Modelled**: which CPU has a cache line, exclusive or shared; that a line is at one place at a time and travels
//! between CPUs of one socket or of two; locks that are handed on in order of arrival; interrupts that take time to
//! arrive; memory bandwidth that the CPUs of a socket share. **Not modelled**: capacity of caches and TLBs, SMT,
//! unfair locks and interconnects, more than two distances, frequencies, reordered stores (all operations are
//! sequentially consistent).

mod acts;
pub mod atomic;
pub mod costs;
mod cpu;
pub mod explore;
mod lines;
pub mod local;
pub mod lock;
mod run;

pub use acts::{
    Instant, barrier, compute, copy, fence, full_path, guest, hand_over, kick, now, pause, pauses, read_page,
    rest, zero_page,
};
pub use atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, copied, filled, forget, read_at_once, read_words,
};
#[doc(no_inline)]
pub use core::sync::atomic::Ordering;
pub use costs::Costs;
pub use run::{Job, JobStats, LineStats, NoStack, SimulatedRun, run};
