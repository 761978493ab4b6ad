//! What happens in a world, as data: drawn from a seed, shrunk, printed.
//!
//! | file | idea |
//! |---|---|
//! | `layout` | the guest's windows for memslots, and the host's pages behind them |
//! | `op` | what a CPU does, one step of its program |
//! | `draw` | a plan from a seed |
//! | `schedule` | how long each CPU is held up before each access |

mod draw;
pub mod layout;
pub mod op;
pub mod schedule;

pub use draw::draw;
use op::Op;
use schedule::Schedule;

/// A page-table format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    /// Four levels, with Accessed and Dirty.
    Ept4,
    /// The same without: pages are withdrawn to learn of the next access.
    Ept4NoAd,
    /// Three levels.
    Pae,
}

/// How stores are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Log {
    /// A bitmap, by write permissions; large pages are split when a log begins, or by the first store.
    Writes {
        /// Split by the first store.
        lazy: bool,
    },
    /// A bitmap, by Dirty bits.
    Bits {
        /// Split by the first store.
        lazy: bool,
        /// A fresh log says that every page is dirty.
        set: bool,
    },
    /// A ring for each vCPU.
    Ring,
}

/// What a CPU is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Runs the guest's vCPU of this number.
    Vcpu(u32),
    /// A thread of the VMM, or of the host's.
    Thread,
}

/// A CPU and its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// Its number in the plan as it was drawn.
    pub number: u32,
    /// What it is.
    pub role: Role,
    /// A vCPU that is kicked makes up to so many accesses more before it answers,
    pub late: u64,
    /// each after so many nanoseconds.
    pub late_ns: u64,
    /// With their numbers in the program as it was drawn.
    pub ops: Vec<(u32, Op)>,
}

/// A world. Equal plans make equal runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// Another schedule of the same sort, and other choices of the host's: 0 as it is drawn.
    pub turn: u64,
    /// The format of the tables.
    pub tables: Tables,
    /// How stores are logged, where a memslot logs.
    pub log: Log,
    /// Pages of tables that may be in use.
    pub budget: Option<u64>,
    /// Large pages do not execute.
    pub nx_huge_pages: bool,
    /// The last of each so many allocations fails; 0: none does.
    pub alloc_fails: u64,
    /// The last of each so many compare-and-swaps of an entry is lost; 0: none is. Not both.
    pub cas_fails: u64,
    /// The host refuses one in so many requests for a page; 0: none.
    pub refuses: u64,
    /// The host cannot say without sleeping what it has, once in so many look-ups; 0: it always can.
    pub silent: u64,
    /// A store to a page that may not be written moves the page, once in so many times; 0: never.
    pub breaks: u64,
    /// Nanoseconds that the host sleeps before it brings a page in.
    pub host_sleeps_ns: u64,
    /// Waiters for a lock sleep after so many nanoseconds; 0: they queue.
    pub park_after_ns: u64,
    /// Regions of the host that are one huge page at first, by bit.
    pub huge: u64,
    /// Memslots at first: number, window, and whether each logs.
    pub slots: Vec<(u32, usize, bool)>,
    /// How CPUs are held up.
    pub schedule: Schedule,
    /// The CPUs; vCPUs come first.
    pub cpus: Vec<Cpu>,
}

impl Plan {
    /// Operations of all CPUs.
    pub fn ops(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.ops.len()).sum()
    }

    /// How many vCPUs the VM has: shrinking leaves them their numbers.
    pub fn vcpus(&self) -> u32 {
        let number = |cpu: &Cpu| match cpu.role {
            Role::Vcpu(id) => id + 1,
            Role::Thread => 0,
        };
        self.cpus.iter().map(number).max().unwrap_or(0).max(1)
    }
}
