//! A primary MMU whose faults take a page lock and read versions of the mappings: models `crates/mm/src/mappings.rs`, in
//! a state of its own.
//!
//! There are two host pages, each in a region of its own, with a page lock and a table that a fault links. A version
//! has the mapping of each page. vCPUs keep translations, and may store through them at any time until they are
//! flushed. The engine is reduced here: a vCPU installs the host's answer if no notification of the page has begun
//! since it asked. The other models check how the engine does that.
//!
//! | module | contents |
//! |---|---|
//! | `shared` | the shared state |
//! | `properties` | the properties at the end |
//! | `fault` | an access: translation, page, frame; copy-on-write |
//! | `change` | mmap, munmap, mprotect, fork: claim, publish, wait, edit |
//! | `evict` | a page goes to swap, and its contents to a copy that a child may share |
//! | `explore` | the check |
//! | [`scenarios`] | the scenarios |

mod change;
mod evict;
mod explore;
mod fault;
mod properties;
pub mod scenarios;
mod shared;

use crate::bug::Bug;
use shared::{PAGES, Shared, THREADS};

/// An operation of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A vCPU stores to a page. Without a mapping it continues.
    Store(u8),
    /// It loads from a page.
    Load(u8),
    /// The host's own thread stores to a page under the page lock.
    Write(u8),
    /// The page goes to swap.
    Evict(u8),
    /// The child's page goes to swap.
    EvictChild(u8),
    /// The page is mapped anew.
    Mmap(u8),
    /// The mapping is removed.
    Munmap(u8),
    /// The page becomes read-only.
    Mprotect(u8),
    /// A child gets all pages.
    Fork,
}

/// The next step of a thread.
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

/// One thread. Only `op` and `pc` survive an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Thread {
    op: u8,
    pc: Pc,
    /// The page that a change has come to.
    page: u8,
    /// Notifications of the page that had begun when the host was asked.
    begun: u8,
    /// The host's answer: a frame, and whether it is writable.
    told: Option<(u8, bool)>,
    /// The version that it read, and the mapping in it.
    read: Option<(u8, shared::Mapped)>,
    /// A frame that it has taken out of an entry.
    taken: Option<u8>,
    /// The version that the change has published.
    published: u8,
    /// Contents of the copy of that frame.
    saved: u8,
}

/// The whole state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    shared: Shared,
    threads: [Thread; THREADS],
}

/// A scenario: a program for each thread, and perhaps a mistake.
#[derive(Clone, Debug)]
pub struct Primary {
    /// Its events, in a few words.
    pub name: String,
    programs: Vec<Vec<Op>>,
    /// Whether pages are present at the start.
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
    /// Ends the operation of thread `i`.
    fn done(&mut self, i: usize) {
        let op = self.threads[i].op + 1;
        self.threads[i] = Thread { op, ..Thread::default() };
    }
}
