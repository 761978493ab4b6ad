//! A plan: the contents of a world as data, which can be drawn from a seed, shrunk and printed.
//!
//! | file | contents |
//! |---|---|
//! | `layout` | the guest's windows for memslots, and the host's pages behind them |
//! | `op` | one operation of a CPU's program |
//! | `draw` | a plan from a seed |
//! | `rounds` | programs in which all CPUs meet, and change a few pages |
//! | `schedule` | the delay of each CPU before each access |

mod draw;
pub mod layout;
pub mod op;
mod rounds;
pub mod schedule;

pub use draw::draw;
use op::Op;
use schedule::Schedule;

/// A page-table format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    /// Four levels, with Accessed and Dirty.
    Ept4,
    /// Four levels without them: the engine withdraws leaf entries to see the next access.
    Ept4NoAd,
    /// Three levels.
    Pae,
}

/// The way in which stores are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Log {
    /// A bitmap, by write permissions. Large leaf entries are split when logging begins, or by the first store.
    Writes {
        /// Large leaf entries are split by the first store.
        lazy: bool,
    },
    /// A bitmap, by Dirty bits.
    Bits {
        /// Large leaf entries are split by the first store.
        lazy: bool,
        /// A new log reports every page as dirty.
        set: bool,
    },
    /// A ring per vCPU.
    Ring,
}

/// The role of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Runs the guest's vCPU of this number.
    Vcpu(u32),
    /// A thread of the VMM or of the host.
    Thread,
}

/// A CPU and its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// Its number in the drawn plan.
    pub number: u32,
    /// Its role.
    pub role: Role,
    /// A kicked vCPU makes up to this many more accesses before it answers,
    pub late: u64,
    /// one each this many nanoseconds.
    pub late_ns: u64,
    /// The operations, with their numbers in the drawn program.
    pub ops: Vec<(u32, Op)>,
}

/// A world. Equal plans make equal runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Varies the schedule and the host's choices within the plan; 0 as drawn.
    pub turn: u64,
    /// The table format.
    pub tables: Tables,
    /// The log of memslots that log.
    pub log: Log,
    /// Maximum number of table pages.
    pub budget: Option<u64>,
    /// Large pages are not executable.
    pub nx_huge_pages: bool,
    /// The last of each so many allocations fails; 0 for none.
    pub alloc_fails: u64,
    /// The last of each so many compare-and-swaps of an entry fails; 0 for none. Not together with the above.
    pub cas_fails: u64,
    /// The host refuses one page request in this many; 0 for none.
    pub refuses: u64,
    /// The host's lookup would have to sleep once in this many; 0 for never.
    pub silent: u64,
    /// A store to a read-only page moves the page once in this many; 0 for never.
    pub breaks: u64,
    /// Nanoseconds that the host sleeps before it provides a page.
    pub host_sleeps_ns: u64,
    /// Waiters for a lock sleep after this many nanoseconds; 0: they queue.
    pub park_after_ns: u64,
    /// Bitmap of the host regions that are one huge page at the start.
    pub huge: u64,
    /// Memslots at the start: number, window, and whether each logs.
    pub slots: Vec<(u32, usize, bool)>,
    /// Whether TLBs ignore flushes: never as drawn.
    pub faulty_tlbs: bool,
    /// The schedule.
    pub schedule: Schedule,
    /// The CPUs; vCPUs come first.
    pub cpus: Vec<Cpu>,
}

impl Plan {
    /// Operations of all CPUs.
    pub fn ops(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.ops.len()).sum()
    }

    /// Number of vCPUs of the VM. Shrinking keeps the numbers of vCPUs.
    pub fn vcpus(&self) -> u32 {
        let number = |cpu: &Cpu| match cpu.role {
            Role::Vcpu(id) => id + 1,
            Role::Thread => 0,
        };
        self.cpus.iter().map(number).max().unwrap_or(0).max(1)
    }
}
