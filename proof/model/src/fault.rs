//! A guest access: `fault::attempt`, `fault::ask`, `fault::install`, `fault::present`, and MMIO entries.

use crate::active::Look;
use crate::bug::Bug;
use crate::scenario::Scenario;
use crate::state::{
    Bad, EPOCH, Fault, LOGGED, Leaf, NONE, Page, Pc, Shared, Span, State, Thread, Track, Version, Walk, Word,
    frame, region,
};

/// The access of a fault.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) gfn: u8,
    pub(crate) write: bool,
    pub(crate) sleeps: bool,
    pub(crate) large: bool,
}

impl Scenario {
    /// One step of an access. `None`: it must wait.
    pub(crate) fn access(&self, s: &mut State, i: usize, access: Access) -> Option<()> {
        let Access { gfn, write, sleeps, large } = access;
        if s.threads[i].pc == Pc::Start && self.bug == Some(Bug::WatchAskedFirst) {
            s.threads[i].fault.watched = s.shared.watches(Span::new(gfn, gfn + 1));
        }
        let thread = s.threads[i];
        match thread.pc {
            Pc::Start if sleeps => {
                s.threads[i].fault.asking = true;
                Self::first(s, i);
            }
            Pc::Start => {
                s.enter(i, gfn);
                s.threads[i].pc = if thread.fault.memo.is_some() { Pc::QuickNumber } else { Pc::Descend };
            }
            Pc::Descend => self.descend(s, i, access),
            Pc::MmioStillValid => self.mmio(s, i, gfn),
            Pc::Stamp => {
                if thread.walk.thawed.is_some() && self.bug != Some(Bug::AnswerOutlived) {
                    // The pursuits before and after the freeze.
                    let lines = &s.shared.lines;
                    let now = || [lines[region(thread.fault.hva)].newest, lines[EPOCH].newest];
                    s.threads[i].fault.offered = thread.fault.offered.filter(|before| *before == now());
                }
                s.threads[i].fault.epoch = s.shared.lines[EPOCH].newest;
                s.threads[i].fault.large = large;
                s.threads[i].pc = Pc::FindSlot;
                if self.bug != Some(Bug::EpochReadAfterSlot) {
                    return self.access(s, i, access);
                }
            }
            Pc::StampLate => {
                s.threads[i].fault.epoch = s.shared.lines[EPOCH].newest;
                s.threads[i].pc = self.first_of_look(&thread);
            }
            Pc::FindSlot => match Self::read_version(s, i) {
                Some(version) => {
                    if version[gfn as usize] != NONE {
                        self.remember(s, i, gfn);
                    }
                    self.slot(s, i, gfn, version);
                }
                None => s.threads[i].pc = Pc::FindIn,
            },
            Pc::FindIn => {
                let version = Self::read_cell(s, i);
                if thread.fault.asking {
                    s.leave(i);
                }
                self.slot(s, i, gfn, version);
            }
            Pc::StampRegion
            | Pc::ScanRegion
            | Pc::LookRegion
            | Pc::ScanEpoch
            | Pc::LookEpoch
            | Pc::EpochUnmoved => self.confirm(s, i, access),
            Pc::Lookup if thread.walk.thawed.is_some() || self.upgrades_first(&thread) => {
                self.decide(s, i, access);
            }
            Pc::Resolve if write && s.shared.locked != NONE => return None,
            Pc::Lookup | Pc::Resolve => self.host_answers(s, i, access),
            Pc::LinkDown => self.link_down(s, i)?,
            Pc::Install if self.knows_logs(s, i) => {}
            Pc::Install => self.install(s, i, access),
            Pc::InstallMmio => {
                let unlooked = self.bug == Some(Bug::MmioUnlooked);
                if let Some(version) = thread.walk.word.version()
                    && thread.walk.level == u8::from(thread.fault.large)
                    && (version <= thread.fault.stamp || unlooked)
                {
                    s.cas(i, thread.walk.word, Word::Mmio(version.max(thread.fault.stamp)));
                }
                s.done(i);
            }
            Pc::GiveBack | Pc::SplitDown | Pc::KeepDirty | Pc::Freeze | Pc::Thaw | Pc::LogStore => {
                return self.present(s, i);
            }
            _ => self.quick(s, i, access),
        }
        Some(())
    }

    /// Looks up the slot of the frame.
    fn slot(&self, s: &mut State, i: usize, gfn: u8, version: Version) {
        let thread = &mut s.threads[i];
        thread.fault.hva = version[gfn as usize];
        if thread.fault.hva == NONE {
            // The hole was read before the epoch. The mmio word covers the whole region, if no slot has any of it.
            thread.fault.stamp = s.shared.published.max(thread.walk.word.version().unwrap_or(0));
            let region = Shared::extent(1, gfn);
            thread.fault.large = (region.start..region.end).all(|gfn| version[gfn as usize] == NONE);
        }
        thread.log.logged = s.shared.log.logs && LOGGED.has(gfn);
        let (none, late) =
            (thread.fault.hva == NONE, self.bug == Some(Bug::StampAfterResolve) && thread.fault.asking);
        if none && thread.walk.thawed.is_some() {
            Self::retry(s, i);
        } else if none && thread.fault.asking {
            s.done(i);
        } else if none && self.bug == Some(Bug::MmioUnconfirmed) {
            thread.pc = Pc::InstallMmio;
        } else {
            thread.pc = match self.bug {
                _ if late => Pc::Resolve,
                Some(Bug::EpochReadAfterSlot) => Pc::StampLate,
                _ => self.first_of_look(&*thread),
            };
        }
    }

    /// Checks whether an mmio word is still true.
    fn mmio(&self, s: &mut State, i: usize, gfn: u8) {
        let Word::Mmio(version) = s.threads[i].walk.word else { unreachable!() };
        if self.bug == Some(Bug::MmioForever) || version >= s.shared.published {
            if s.shared.memslots[gfn as usize] != NONE {
                s.shared.bad = Some(Bad::FalseMmio);
            }
            s.done(i);
        } else {
            s.threads[i].pc = Pc::Stamp;
        }
    }

    /// Returns the step after the slot is known. A frozen entry needs no stamp; without a slot there is no region.
    pub(crate) fn first_of_look(&self, thread: &Thread) -> Pc {
        match thread.fault.hva {
            NONE => Pc::ScanEpoch,
            _ if thread.walk.thawed.is_some() || self.bug == Some(Bug::RegionReadAfterScan) => Pc::ScanRegion,
            _ => Pc::StampRegion,
        }
    }

    /// `Active::confirm`.
    fn confirm(&self, s: &mut State, i: usize, Access { gfn, write, .. }: Access) {
        let look = self.look(s, i, gfn);
        let thread = s.threads[i];
        if thread.fault.quick {
            self.confirmed_again(s, i, gfn, &look);
            return;
        }
        match look {
            Look::Unfinished => {}
            Look::Covered | Look::Moved => Self::retry(s, i),
            // If a part of the region is about to get a slot, no mmio word is installed.
            Look::Confirmed if thread.fault.hva == NONE && s.threads[i].fault.part => s.done(i),
            Look::Confirmed => {
                s.threads[i].pc = if thread.fault.hva == NONE {
                    self.place(s, i)
                } else if thread.fault.asking && self.bug == Some(Bug::StampAfterResolve) {
                    s.enter(i, gfn);
                    Pc::Descend
                } else if thread.fault.asking {
                    Pc::Resolve
                } else {
                    Pc::Lookup
                };
                if thread.fault.asking && write && thread.fault.hva != NONE {
                    s.threads[i].fault.offered = Some([thread.fault.region, thread.fault.epoch]);
                }
                // Forget the checked values, so that fewer states differ.
                (s.threads[i].fault.region, s.threads[i].fault.epoch) =
                    (0, if thread.fault.hva == NONE { thread.fault.epoch } else { 0 });
            }
        }
    }

    /// Returns to the first step, outside a section.
    pub(crate) fn first(s: &mut State, i: usize) {
        s.threads[i].pc = Pc::Stamp;
    }

    /// `Outcome::Retry` and `Outcome::Covered`; thaws a frozen entry first.
    pub(crate) fn retry(s: &mut State, i: usize) {
        if s.threads[i].walk.thawed.is_some() {
            s.threads[i].pc = Pc::Thaw;
        } else {
            s.again(i);
        }
    }

    /// Goes one level down, or finds the entry.
    fn descend(&self, s: &mut State, i: usize, Access { write, .. }: Access) {
        let Thread { gfn, walk: Walk { level, .. }, fault: Fault { asking, .. }, .. } = s.threads[i];
        let word = s.shared.load(s.threads[i].node(), level, gfn);
        if let Word::Table(child) = word {
            s.threads[i].walk.level -= 1;
            s.threads[i].walk.path[level as usize - 1] = child;
            return;
        }
        s.threads[i].walk.word = word;
        if !matches!(word, Word::Leaf(_)) {
            s.threads[i].fault.offered = None;
        }
        let moved = s.shared.log.logs && LOGGED.has(gfn) && !s.threads[i].log.logged;
        match word {
            // The slot began to log after the look-up, so the log would miss stores to the new leaf.
            _ if asking && moved && self.bug != Some(Bug::AskForgetsLog) => s.again(i),
            // The TLB was stale, or another thread was faster.
            Word::Leaf(leaf) if leaf.write || !write => s.done(i),
            Word::Leaf(_) if asking && !self.is_offered(s, i) => s.again(i),
            Word::Leaf(_) if asking => {
                s.threads[i].fault.asking = false;
                let keeps = s.shared.keeps(word, level) && self.bug != Some(Bug::FrozenNotKept);
                s.threads[i].pc = if keeps { Pc::KeepDirty } else { Pc::Freeze };
            }
            Word::Leaf(_) if level == 1 && s.shared.log.logs && LOGGED.has(gfn) => {
                s.threads[i].pc = Pc::SplitDown;
            }
            Word::Leaf(leaf) if leaf.host_write => s.threads[i].pc = Pc::GiveBack,
            // The store is emulated.
            Word::Leaf(_) if s.shared.watches(Span::new(gfn, gfn + 1)) => s.done(i),
            Word::Leaf(_) if s.shared.watches(Shared::extent(level, gfn)) => s.threads[i].pc = Pc::SplitDown,
            Word::Leaf(_) if self.bug == Some(Bug::UpgradeStampsFirst) => s.threads[i].pc = Pc::Stamp,
            // A thread that replaces a frozen entry does not know the old leaf.
            Word::Leaf(_) if s.shared.keeps(word, level) && self.bug != Some(Bug::FrozenNotKept) => {
                s.threads[i].pc = Pc::KeepDirty;
            }
            Word::Leaf(_) => s.threads[i].pc = Pc::Freeze,
            _ if asking => s.threads[i].pc = self.place(s, i),
            Word::Mmio(_) => s.threads[i].pc = Pc::MmioStillValid,
            _ => s.threads[i].pc = Pc::Stamp,
        }
    }

    /// Whether the host has said that the page of the leaf may be stored to: the fault upgrades it at once.
    fn is_offered(&self, s: &State, i: usize) -> bool {
        let Thread { gfn, walk: Walk { level, word, .. }, fault: Fault { page, offered, .. }, .. } =
            s.threads[i];
        let (Word::Leaf(leaf), Some(page)) = (word, page) else { return false };
        let within = if page.large { gfn & 1 } else { 0 };
        let same = leaf.pfn + (gfn & (Shared::pages(level) - 1)) == page.pfn + within;
        // The answer was about the whole page only if no invalidation covered a part.
        let large = page.large || self.bug == Some(Bug::AnswerOfPart);
        let whole = level == 0 || large && !s.shared.log.logs;
        offered.is_some() && page.write && same && whole && self.bug != Some(Bug::UpgradeStampsFirst)
    }

    /// `Host::lookup`, `Host::resolve`.
    fn host_answers(&self, s: &mut State, i: usize, Access { gfn, write, large, .. }: Access) {
        let Fault { hva, asking, .. } = s.threads[i].fault;
        let at = hva as usize;
        let watched = match self.bug {
            Some(Bug::WatchUnasked) => false,
            Some(Bug::WatchAskedFirst) => s.threads[i].fault.watched,
            _ => s.shared.watches(Span::new(gfn, gfn + 1)),
        };
        if write && watched {
            // The store is emulated.
            s.done(i);
            return;
        }
        if write && !s.shared.writable[at] {
            if !asking {
                // The host would have to sleep.
                s.again(i);
                s.threads[i].fault.asking = true;
                Self::first(s, i);
                return;
            }
            // A page of a pair is half of a huge page, which the host makes writable as a whole.
            let other = if pair(&s.shared, gfn, hva) { at ^ 1 } else { at };
            (s.shared.writable[at], s.shared.writable[other]) = (true, true);
        }
        // If a part of the region is covered, the fault maps a small page.
        let free = !s.threads[i].fault.part || self.bug == Some(Bug::LargeUnconfirmed);
        let whole = !s.shared.watches(Shared::extent(1, gfn)) || self.bug == Some(Bug::WatchUnasked);
        let large = large && pair(&s.shared, gfn, hva) && !s.threads[i].log.logged && free && whole;
        let pfn = frame(s.shared.frames[at], hva);
        let pfn = if large { pfn & !1 } else { pfn };
        s.threads[i].fault.page = Some(Page { pfn, write: s.shared.writable[at] && !watched, large });
        s.threads[i].pc = if asking && self.bug == Some(Bug::StampAfterResolve) {
            self.first_of_look(&s.threads[i])
        } else if asking {
            s.enter(i, gfn);
            Pc::Descend
        } else {
            self.place(s, i)
        };
    }

    /// Returns the step before the install of the leaf or of the mmio word.
    #[allow(clippy::unused_self, reason = "a step like the others")]
    fn place(&self, s: &State, i: usize) -> Pc {
        let Thread { walk: Walk { level, .. }, fault: Fault { hva, page, large, .. }, .. } = s.threads[i];
        let wanted = if hva == NONE { large } else { page.is_some_and(|page| page.large) };
        match hva {
            _ if level > u8::from(wanted) => Pc::LinkDown,
            NONE => Pc::InstallMmio,
            _ => Pc::Install,
        }
    }

    fn link_down(&self, s: &mut State, i: usize) -> Option<()> {
        let Walk { level, word, .. } = s.threads[i].walk;
        let Some(version) = word.version() else {
            s.again(i);
            return Some(());
        };
        let fill = if self.bug == Some(Bug::LinkFillsZero) { 0 } else { version };
        let child = s.shared.new_node(level - 1, [Word::Hole(fill); 2])?;
        if s.cas(i, word, Word::Table(child)) {
            s.threads[i].walk.path[level as usize - 1] = child;
            s.threads[i].walk.level -= 1;
            s.threads[i].walk.word = Word::Hole(fill);
            s.threads[i].pc = self.place(s, i);
        } else {
            s.shared.free_node(child);
            // Another thread's table, or another word.
            s.threads[i].pc = Pc::Descend;
            s.threads[i].fault.asking = true;
        }
        Some(())
    }

    fn install(&self, s: &mut State, i: usize, Access { write, sleeps, .. }: Access) {
        let Thread { gfn, walk: Walk { level, word, .. }, fault: Fault { stamp, page, .. }, .. } =
            s.threads[i];
        let page = page.expect("the host answered");
        let fresh = word.version().is_some_and(|version| version <= stamp);
        let fresh = fresh || self.bug == Some(Bug::VersionUnchecked) && word.version().is_some();
        let within = if page.large && level == 0 { gfn & 1 } else { 0 };
        // In a slot that logs, the first store to a page faults, whatever was mapped before.
        let armed = s.threads[i].log.logged && s.shared.log.track == Track::Writes && !write;
        let allows = page.write && (!armed || self.bug == Some(Bug::LoadMapsWritable));
        let leaf = Leaf { pfn: page.pfn + within, write: allows, host_write: page.write, dirty: write };
        if fresh && s.cas(i, word, Word::Leaf(leaf)) {
            s.shared.book(level, 1);
            if allows && s.threads[i].log.logged && !armed { self.fixed(s, i) } else { s.done(i) }
        } else {
            s.again(i);
            // A fault that does not sleep meets the hole before its stamp.
            s.threads[i].fault.met = if sleeps && !fresh { word.version().unwrap_or(0) } else { 0 };
        }
    }
}

/// Returns whether host page `hva`, which backs `gfn`, is half of a pair that a large leaf could map.
pub(crate) fn pair(shared: &Shared, gfn: u8, hva: u8) -> bool {
    let (gfn, even) = (gfn as usize & !1, hva as usize & !1);
    shared.memslots[gfn] == even as u8
        && shared.memslots[gfn + 1] == even as u8 + 1
        && shared.frames[even] == shared.frames[even + 1]
        && shared.writable[even] == shared.writable[even + 1]
}
