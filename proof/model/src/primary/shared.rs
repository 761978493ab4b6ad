//! The shared state.

use crate::state::Bad;

/// Number of threads.
pub(super) const THREADS: usize = 3;
/// Host pages.
pub(super) const PAGES: usize = 2;

/// A page's mapping in a version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Mapped {
    /// Nothing.
    Nothing,
    /// Nothing, and the range is reserved.
    Gone,
    /// The mapping of this number.
    Here { number: u8, writable: bool },
}

/// The host's state of one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Page {
    /// The mapping in the current version.
    pub(super) mapped: Mapped,
    /// Whether its table is linked.
    pub(super) linked: bool,
    /// A frame, whether it is writable, and the mapping that it belongs to.
    pub(super) entry: Option<(u8, bool, u8)>,
    /// The thread that holds its page lock.
    pub(super) locked: Option<u8>,
    /// The thread that has claimed it.
    pub(super) claimed: Option<u8>,
    /// Notifications that have begun, and those of them that have not ended.
    pub(super) begun: u8,
    pub(super) active: u8,
    /// A change to read-only has ended, so no thread may store to it.
    pub(super) protected: bool,
    /// The child's frame.
    pub(super) child: Option<u8>,
    /// The entry has a frame, and no MMU may map it.
    pub(super) parked: bool,
    /// The entry refers to a copy: the contents of the copy, and its mapping. Likewise for the child.
    pub(super) copy: Option<(u8, u8)>,
    pub(super) child_copy: Option<u8>,
    /// Contents that the child got.
    pub(super) forked: u8,
    /// The swap cache: a frame, and the contents of the copy to which other entries refer.
    pub(super) cached: Option<(u8, u8)>,
    /// The frame that is marked as leaving.
    pub(super) leaving: Option<u8>,
}

/// The shared state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shared {
    pub(super) pages: [Page; PAGES],
    /// Versions published so far; those below this one are freed.
    pub(super) version: u8,
    pub(super) freed_versions: u8,
    /// Published forks.
    pub(super) forks: u8,
    pub(super) forked: bool,
    /// Mappings and frames made so far; frames that were given back.
    pub(super) mappings: u8,
    pub(super) frames: u8,
    pub(super) freed: u16,
    /// Contents of each frame: a bit for each store of the programs.
    pub(super) contents: [u8; 10],
    /// Evictions that have a reference to each frame.
    pub(super) held: [u8; 10],
    /// Each thread's translations: a frame, and whether it is writable.
    pub(super) tlb: [[Option<(u8, bool)>; PAGES]; THREADS],
    pub(super) bad: Option<Bad>,
}

impl Shared {
    pub(super) fn new(filled: bool) -> Self {
        let page = |index: u8| Page {
            mapped: Mapped::Here { number: index, writable: true },
            linked: filled,
            entry: filled.then_some((index, true, index)),
            locked: None,
            claimed: None,
            begun: 0,
            active: 0,
            protected: false,
            child: None,
            parked: false,
            copy: None,
            child_copy: None,
            forked: 0,
            cached: None,
            leaving: None,
        };
        Self {
            pages: [page(0), page(1)],
            version: 0,
            freed_versions: 0,
            forks: 0,
            forked: false,
            mappings: 2,
            frames: 2,
            freed: 0,
            contents: [0; 10],
            held: [0; 10],
            tlb: [[None; PAGES]; THREADS],
            bad: None,
        }
    }

    /// Returns a frame that was never used.
    pub(super) fn take_frame(&mut self) -> u8 {
        self.frames += 1;
        self.frames - 1
    }

    /// Stores to the page, which is in this frame.
    pub(super) fn store(&mut self, at: usize, frame: u8, bit: u8) {
        self.contents[usize::from(frame)] |= bit;
        // A vCPU with another frame loads old contents.
        let is_stale = |tlb: &[Option<(u8, bool)>; PAGES]| tlb[at].is_some_and(|(other, _)| other != frame);
        if self.tlb.iter().any(is_stale) {
            self.bad = Some(Bad::StaleLoad);
        }
    }

    /// Judges what hardware could do in this state.
    pub(super) fn hardware(&mut self) {
        for (page, at) in self.pages.iter().zip(0..) {
            for (frame, writable) in self.tlb.iter().filter_map(|tlb| tlb[at]) {
                if self.freed >> frame & 1 != 0 {
                    self.bad = Some(Bad::StaleLoad);
                } else if writable && page.protected {
                    self.bad = Some(Bad::StaleStore);
                } else if writable && self.forked && page.child == Some(frame) {
                    self.bad = Some(Bad::StoreAfterCopy);
                }
            }
        }
    }
}
