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

/// A thread's own variables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Thread {
    pub(crate) op: u8,
    pub(crate) pc: Pc,
    /// In a section of the read side.
    pub(crate) inside: bool,
    /// Threads whose sections it waits for.
    pub(crate) waits: u8,
    pub(crate) level: u8,
    pub(crate) gfn: u8,
    pub(crate) path: [u8; 3],
    pub(crate) word: Word,
    /// The epoch and the region's word that a fault read; and its stamp.
    pub(crate) epoch: u8,
    pub(crate) region: u8,
    pub(crate) stamp: u8,
    /// The hole that was newer than its last stamp.
    pub(crate) met: u8,
    /// Places that are still to check; whether it may map the whole region; whether a part of that is covered.
    pub(crate) places: u8,
    pub(crate) large: bool,
    pub(crate) part: bool,
    pub(crate) hva: u8,
    pub(crate) page: Option<Page>,
    /// The number of its invalidation.
    pub(crate) number: u8,
    /// Lines on which it is still to be listed, or announced.
    pub(crate) lines: u8,
    /// It repeats its range.
    pub(crate) again: bool,
    /// It has put a hole in place of something since it last looked for a newer invalidation.
    pub(crate) took: bool,
    /// The range that it walks.
    pub(crate) span: Span,
    /// The page that it reports.
    pub(crate) telling: u8,
    /// The new generations of replaced pages.
    pub(crate) replaced: [u8; PAGES as usize],
    pub(crate) owed: Span,
    pub(crate) unlinked: u8,
    /// It has taken the held frame back.
    pub(crate) took_held: bool,
    /// The region's word and the epoch before the host answered that a page may be stored to. An upgrade may use the
    /// answer while both are unchanged.
    pub(crate) offered: Option<[u8; 2]>,
    /// It is asking the host outside a section.
    pub(crate) asking: bool,
    /// It has frozen an entry, and will thaw it to this.
    pub(crate) thawed: Option<Word>,
    /// The number of its flush; the vCPUs that it has kicked.
    pub(crate) generation: u8,
    pub(crate) kicked: u8,
    /// The version of the slots that it is about to read.
    pub(crate) version: u8,
    /// Its transaction takes something from readers; and it has published before the zap, by a seeded mistake.
    pub(crate) takes: bool,
    pub(crate) withdrawn: bool,
    /// It found its frame tracked before its stamp, by a seeded mistake.
    pub(crate) watched: bool,
    /// Its slot logs.
    pub(crate) logged: bool,
    /// It has read the version in which it will mark; and whether its frame has the slot that logs there.
    pub(crate) known: Option<bool>,
    /// Its tables have no leaves any more.
    pub(crate) emptied: bool,
    /// Pages that had been written when its harvest began; pages taken from the log; pages to arm yet; pages to mark when it is too late.
    pub(crate) before: u8,
    pub(crate) taken: u8,
    pub(crate) arms: u8,
    pub(crate) late: u8,
    /// Its memo, if it has one.
    pub(crate) memo: Option<Memo>,
    /// It is on the quick path of its memo.
    pub(crate) quick: bool,
}

impl Thread {
    pub(crate) fn at(op: u8) -> Self {
        Self {
            op,
            pc: Pc::Start,
            inside: false,
            waits: 0,
            level: 0,
            gfn: 0,
            path: [NONE; 3],
            word: Word::Hole(0),
            epoch: 0,
            region: 0,
            stamp: 0,
            met: 0,
            places: 0,
            large: false,
            part: false,
            hva: NONE,
            page: None,
            number: 0,
            lines: 0,
            again: false,
            took: false,
            span: Span::default(),
            telling: NONE,
            replaced: [0; PAGES as usize],
            owed: Span::default(),
            unlinked: 0,
            took_held: false,
            offered: None,
            asking: false,
            thawed: None,
            generation: 0,
            kicked: 0,
            version: 0,
            takes: false,
            withdrawn: false,
            watched: false,
            logged: false,
            known: None,
            emptied: false,
            before: 0,
            taken: 0,
            arms: 0,
            late: 0,
            memo: None,
            quick: false,
        }
    }

    /// The table that it stands in.
    pub(crate) fn node(&self) -> u8 {
        self.path[self.level as usize]
    }

    pub(crate) fn owe(&mut self, gfns: Span) {
        self.owed = self.owed.hull(gfns);
    }
}
