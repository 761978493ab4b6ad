//! The versions of the slots, and the log of the slot that logs.

use super::pages::{NONE, PAGES, Span};

/// The host page behind each guest frame.
pub(crate) type Version = [u8; PAGES as usize];

/// `SlotSets`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sets {
    /// Whether a look-up takes two steps.
    pub(crate) cells: Option<[Cell; 2]>,
    /// Number of the published version, and of the oldest one that a reader may have.
    pub(crate) number: u8,
    pub(crate) oldest: u8,
    /// The log of the published version has just begun, all marked: `SlotSets::progress`.
    pub(crate) in_progress: bool,
}

/// A version, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    pub(crate) number: u8,
    pub(crate) version: Version,
}

impl Sets {
    pub(crate) fn of(version: Version) -> Self {
        Self { cells: Some([Cell { number: 0, version }; 2]), ..Self::default() }
    }

    /// `Writer::make_room` has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.cells.is_some() && self.number + 1 - self.oldest >= 2
    }
}

/// Returns the frames at which a version maps `hvas`: one run.
pub(crate) fn over_hvas(version: Version, hvas: Span) -> Span {
    let mut frames = Span::default();
    for (gfn, hva) in (0_u8..).zip(version) {
        if hva != NONE && hvas.has(hva) {
            frames = frames.hull(Span::new(gfn, gfn + 1));
        }
    }
    frames
}

/// The frames that log.
pub(crate) const LOGGED: Span = Span::new(0, 2);

/// How the log learns of stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Track {
    /// Not at all.
    #[default]
    Nothing,
    /// Write protection.
    Writes,
    /// The D bits that the hardware sets.
    DirtyBits,
}

/// The log, and the state of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Log {
    /// The policy of the VM.
    pub(crate) track: Track,
    /// The published slot logs.
    pub(crate) logs: bool,
    /// The thread that switched the log on has returned.
    pub(crate) begun: bool,
    /// The log begins with all pages marked: `DirtyLog::initially_set`.
    pub(crate) set: bool,
    pub(crate) marks: u8,
    /// Pages stored to since their copy.
    pub(crate) unsaved: u8,
}

impl Log {
    /// Publishes the slot that logs.
    pub(crate) fn begins(&mut self) {
        self.logs = true;
        if self.set {
            (self.begun, self.marks, self.unsaved) = (true, 3, 3);
        }
    }

    /// `KnownLogs::mark`, in a version that has the slot.
    pub(crate) fn log_writes(&mut self, gfns: Span) {
        if self.logs {
            self.marks |= (gfns.start..gfns.end).fold(0, |set, gfn| set | 1 << gfn);
        }
    }
}
