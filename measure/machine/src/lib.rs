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
//! | `costs` | the cost of each operation, and its source |
//! | `cpu` | clocks, and the choice of the CPU that runs next |
//! | `prices` | the costs in picoseconds |
//! | `lines` | cache lines: the CPU that has each, the time to get it, and the lines that CPUs contend for |
//! | `line_access` | an access of the running CPU to a line |
//! | `atomic` | `core`'s atomics, each operation an access to a line |
//! | `lock` | a mutex and a reader-writer lock, handed on in order of arrival |
//! | `acts` | further operations of a CPU: compute, sleep, kick, zero a page |
//! | `local` | a thread-local value is local to the simulated CPU |
//! | `run` | coroutines, and the result of a run |
//! | `schedule`, `explore` | runs that test correctness: the caller chooses the order, and sees each access |
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
mod line_access;
mod lines;
pub mod local;
pub mod lock;
mod prices;
mod run;
mod schedule;

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
