//! A thread: its operation, its next step, its variables.

use super::memo::Memo;
use super::pages::{NONE, PAGES, Span};
use super::pc::Pc;
use super::table::Word;

/// The host's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Page {
    pub(crate) pfn: u8,
    pub(crate) write: bool,
    pub(crate) large: bool,
}

/// A thread's own variables: those of every operation, and one group for each kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Thread {
    pub(crate) op: u8,
    pub(crate) pc: Pc,
    /// In a section of the read side.
    pub(crate) inside: bool,
    /// Threads whose sections it waits for.
    pub(crate) waits: u8,
    pub(crate) gfn: u8,
    pub(crate) walk: Walk,
    pub(crate) fault: Fault,
    pub(crate) change: Change,
    pub(crate) flush: Flush,
    pub(crate) commit: Commit,
    pub(crate) log: Logging,
}

/// A walk of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Walk {
    pub(crate) level: u8,
    pub(crate) path: [u8; 3],
    pub(crate) word: Word,
    /// The range that it walks.
    pub(crate) span: Span,
    /// It has frozen an entry, and will thaw it to this.
    pub(crate) thawed: Option<Word>,
}

/// A fault, from the memslot to the leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Fault {
    /// The epoch and the region's word that it read; and its stamp.
    pub(crate) epoch: u8,
    pub(crate) region: u8,
    pub(crate) stamp: u8,
    /// The hole that was newer than its last stamp.
    pub(crate) met: u8,
    /// Places that are still to check; whether it may map the whole region; whether a part of that is covered.
    pub(crate) places: u8,
    pub(crate) large: bool,
    pub(crate) part: bool,
    /// The version of the slots that it is about to read, and the host page that they gave.
    pub(crate) version: u8,
    pub(crate) hva: u8,
    pub(crate) page: Option<Page>,
    /// It is asking the host outside a section.
    pub(crate) asking: bool,
    /// The region's word and the epoch before the host answered that a page may be stored to. An upgrade may use the
    /// answer while both are unchanged.
    pub(crate) offered: Option<[u8; 2]>,
    /// Its memo, if it has one; and whether it is on the quick path of it.
    pub(crate) memo: Option<Memo>,
    pub(crate) quick: bool,
    /// It found its frame tracked before its stamp, by a seeded mistake.
    pub(crate) watched: bool,
}

/// An invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Change {
    pub(crate) number: u8,
    /// Lines on which it is still to be listed, or announced.
    pub(crate) lines: u8,
    /// It repeats its range.
    pub(crate) again: bool,
    /// It has put a hole in place of something since it last looked for a newer invalidation.
    pub(crate) took: bool,
    /// The page that it reports.
    pub(crate) telling: u8,
    /// The new generations of replaced pages.
    pub(crate) replaced: [u8; PAGES as usize],
    /// It has taken the held frame back.
    pub(crate) took_held: bool,
}

/// A debt of a flush, and its payment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Flush {
    pub(crate) owed: Span,
    pub(crate) unlinked: u8,
    /// The number of the flush; the vCPUs that it has kicked.
    pub(crate) generation: u8,
    pub(crate) kicked: u8,
}

/// A transaction of memslots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Commit {
    /// It takes something from readers; and it has published before the zap, by a seeded mistake.
    pub(crate) takes: bool,
    pub(crate) withdrawn: bool,
    /// Its tables have no leaves any more.
    pub(crate) emptied: bool,
}

/// A mark in a dirty log, or a harvest of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Logging {
    /// Its slot logs.
    pub(crate) logged: bool,
    /// It has read the version in which it will mark; and whether its frame has the slot that logs there.
    pub(crate) known: Option<bool>,
    /// Pages that had been written when the harvest began; pages taken from the log; pages to arm yet; pages to mark when
    /// it is too late.
    pub(crate) before: u8,
    pub(crate) taken: u8,
    pub(crate) arms: u8,
    pub(crate) late: u8,
}

impl Default for Walk {
    fn default() -> Self {
        Self { level: 0, path: [NONE; 3], word: Word::Hole(0), span: Span::default(), thawed: None }
    }
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            epoch: 0,
            region: 0,
            stamp: 0,
            met: 0,
            places: 0,
            large: false,
            part: false,
            version: 0,
            hva: NONE,
            page: None,
            asking: false,
            offered: None,
            memo: None,
            quick: false,
            watched: false,
        }
    }
}

impl Default for Change {
    fn default() -> Self {
        Self {
            number: 0,
            lines: 0,
            again: false,
            took: false,
            telling: NONE,
            replaced: [0; PAGES as usize],
            took_held: false,
        }
    }
}

impl Thread {
    /// A thread before its operation `op`, with the memo of the operations before.
    pub(crate) fn at(op: u8, memo: Option<Memo>) -> Self {
        Self { op, fault: Fault { memo, ..Fault::default() }, ..Self::default() }
    }

    /// The table that it stands in.
    pub(crate) fn node(&self) -> u8 {
        self.walk.path[self.walk.level as usize]
    }

    pub(crate) fn owe(&mut self, gfns: Span) {
        self.flush.owed = self.flush.owed.hull(gfns);
    }
}
