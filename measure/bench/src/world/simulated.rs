//! The simulated machine: acts cost virtual time by its price list.

use crate::world::run_stats::{ContendedLine, RunStats};
pub use slat_machine::lock::{Mutex, MutexGuard, RwLock};
pub use slat_machine::{
    AtomicPtr, AtomicU64, compute, copied, copy, fence, guest, hand_over, kick, now, pause, read_at_once,
    read_page, rest, thread_local, zero_page,
};
use slat_machine::{Costs, Job};

/// Acts of a job between two looks at the clock: looks cost nothing.
pub const LOOK_EVERY: u64 = 1;

/// [`now`], at the price of a look at the clock: for stretches that real looks make longer by much.
pub fn clock() -> u64 {
    let _ = slat_machine::Instant::now();
    now()
}

/// The content of the lines that are used at a place: files of the engine, of slat-mm and of this package, from their `src/` on. The
/// first that the place begins with.
const NAMES: &[(&str, &str)] = &[
    ("sync/baselines.rs", "the MMU lock"),
    ("sync/readside.rs", "seats of the read side"),
    ("active", "the active set of invalidations"),
    ("sync/once.rs", "values that are made once"),
    ("sync/prim/", "words that are read in a row"),
    ("tlb/shootdown.rs", "shootdowns: generation and answers"),
    ("table/pool.rs", "the pool of table pages"),
    ("table/retire.rs", "tables that wait for a grace period"),
    ("table/radix.rs", "the root of the tables"),
    ("table/", "page-table entries"),
    ("age/", "page-table entries"),
    ("slots/", "memslots"),
    ("tree", "nodes of memslots and mappings"),
    ("dirty/", "the dirty log"),
    ("dirty_log/", "the dirty log"),
    ("fault/", "a fault's own words"),
    ("shadows/", "shadows of nested guests"),
    ("vm.rs", "the VM"),
    ("parts/sim_host.rs", "the host's memory map"),
    ("nodes/zones.rs", "zones of the host's free frames"),
    ("nodes/pool.rs", "threads' lists of the host's free frames"),
    ("page_lock.rs", "the host's page locks"),
    ("mappings.rs", "the host's mappings"),
    ("state.rs", "the host's listeners"),
    ("stats.rs", "the host's counters"),
    ("mutex.rs", "locks that are left"),
    ("rwlock.rs", "locks that are left"),
    ("parts/", "the bench itself"),
    ("scenarios/", "the bench itself"),
];

/// Nanoseconds since `began`.
pub fn elapsed(began: u64) -> u64 {
    now() - began
}

/// Each job runs on a CPU of its own, all begin together; returns when all have ended.
pub fn run(costs: &Costs, jobs: Vec<Job<'_>>) -> RunStats {
    let stats = slat_machine::run(costs, jobs);
    let lines = stats.lines.into_iter().map(|line| {
        let name = NAMES.iter().find(|(place, _)| line.file.starts_with(place)).map(|&(_, name)| name);
        ContendedLine {
            name: name.unwrap_or("elsewhere").to_owned(),
            site: format!("{}:{}", line.file, line.line),
            lines: line.lines,
            transfers: line.transfers,
            waited_ns: line.waited_ns,
        }
    });
    RunStats {
        wall_ns: stats.wall_ns,
        lines: lines.collect(),
        jobs: stats.jobs,
        kicks: stats.kicks,
        events: stats.events,
        preemptions: 0,
    }
}
