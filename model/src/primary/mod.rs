//! A primary MMU whose faults take a page lock and read versions of the mappings: `mm/src/mappings.rs`, in worlds of its own.
//!
//! There are two host pages, each in a region of its own: it has its page lock, and its table, which a fault links. A version says for
//! each page what is mapped there. vCPUs keep translations, and store through them whenever they like until they are flushed. The
//! engine between the two is small here: a vCPU installs what it was told if no notification of the page has begun since it asked; what
//! that takes, the other models have.
//!
//! | room | what |
//! |---|---|
//! | `world` | what is shared; what no vCPU may reach; what must be so in the end |
//! | `fault` | an access: translation, page, frame; a share that is broken |
//! | `change` | mmap, munmap, mprotect, fork: claim, publish, outlast, edit |
//! | `evict` | a page goes to swap, and its contents to a copy that a child may share |
//! | `explore` | the check |
//! | [`scenarios`] | those that are checked |

mod change;
mod evict;
mod explore;
mod fault;
pub mod scenarios;
mod world;

use crate::bug::Bug;
use world::World;

/// Threads in the world.
const THREADS: usize = 3;
/// Host pages.
const PAGES: usize = 2;

/// What a thread is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A vCPU stores to a page. Where nothing is mapped, it goes on.
    Store(u8),
    /// It loads from a page.
    Load(u8),
    /// The host's own thread stores to a page, as it finds it under the page lock.
    Write(u8),
    /// The page goes to swap.
    Evict(u8),
    /// The child's page does.
    EvictChild(u8),
    /// The page is mapped anew.
    Mmap(u8),
    /// What is mapped there goes.
    Munmap(u8),
    /// It may be read only from now on.
    Mprotect(u8),
    /// A child gets all pages.
    Fork,
}

/// Where a thread stands in its operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs, reason = "each is what the thread does next")]
pub enum Pc {
    #[default]
    Start,
    // A fault.
    Ask,
    Install,
    ReadEarly,
    Lock,
    Read,
    Link,
    Fill,
    Copy,
    Unlock,
    // A change, of the page that it has come to.
    Publish,
    Outlast,
    Retire,
    Begin,
    Sweep,
    Flush,
    Free,
    PublishEnd,
    Unclaim,
    // An eviction.
    Save,
    Leave,
}

/// One thread. All but `op` and `pc` is forgotten between operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Thread {
    op: u8,
    pc: Pc,
    /// The page that a change has come to.
    page: u8,
    /// Notifications of the page that had begun when the host was asked.
    begun: u8,
    /// What it was told: a frame, and whether it is writable.
    told: Option<(u8, bool)>,
    /// The version that it read, and what that says.
    read: Option<(u8, world::Mapped)>,
    /// A frame that it has taken out of an entry.
    taken: Option<u8>,
    /// The version that the change has published.
    published: u8,
    /// What the copy of that frame holds.
    saved: u8,
}

/// All of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    world: World,
    threads: [Thread; THREADS],
}

/// A scenario: a program for each thread, and perhaps a mistake.
#[derive(Clone, Debug)]
pub struct Primary {
    /// What happens in it.
    pub name: String,
    programs: Vec<Vec<Op>>,
    /// Pages that are there in the beginning.
    filled: bool,
    bug: Option<Bug>,
}

impl Primary {
    fn new(name: &str, filled: bool, programs: &[&[Op]]) -> Self {
        let programs = programs.iter().map(|ops| ops.to_vec()).collect();
        Self { name: format!("primary: {name}"), programs, filled, bug: None }
    }

    /// The same with a mistake.
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    fn makes(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

impl State {
    /// The operation of thread `i` is over.
    fn done(&mut self, i: usize) {
        let op = self.threads[i].op + 1;
        self.threads[i] = Thread { op, ..Thread::default() };
    }
}
