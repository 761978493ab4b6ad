//! The walk of T: one for all formats.
//!
//! ```text
//! one section of the read side
//!   entry by entry, from the root   L1 frame of the table ─▶ memslot ─▶ Hva ─▶ `Host::read`
//!     no memslot?                   to L1: its table is in no memory
//!     the host would sleep?         `Ask`: leave the section, resolve, start over
//!     refused by the format?        to L1, with the level
//!   the rights of all entries together: not enough?                      to L1
//!   A of each entry, D of the leaf for a store: `Host::compare_exchange`, then the table's page is dirty
//!     the entry has changed?        start over
//! ```
//! **The walk compares rights at the end**, all together, when every entry is known to be well-formed. **It sets A and
//! D after that**: a refused access leaves T unchanged. Hardware may set A earlier; L1 must not rely on it.
//!
//! **It withholds W while D is clear.** A leaf that was walked for a load may be composed, but a store through it would
//! not set D.
//!
//! The walk reads T's pages by host address, under the memslots of the section. They need no mapping here, and so no
//! invalidation. Setting A or D is a store of the guest: the host makes the page writable first, and the walk marks it
//! dirty afterwards. If its stores are tracked ([`GuestSpace::track_writes`]), the listeners are called **after** the
//! store, with the eight bytes of the entry. They may sleep, so this happens outside the section, and the walk then
//! starts over. (KVM calls no listener here.)

use super::entry_words::{GuestWords, place_of};
use super::format::{L1Access, L1Entry, L1Fault, L1Format, L1Rights, Refusal};
use super::l1_mapping::Upper;
use crate::dirty::mark::KnownLogs;
use crate::slots::publish::Reading;
use crate::slots::watched::TrackedStore;
use crate::sync::readside::Seat;
use crate::writes::tell_after;
use crate::{
    Access, Format, Gfn, Gpa, GuestSpace, Host, HostError, Hva, Idle, Level, MemoryType, Perms, Slot, Span,
    Word,
};

/// Attempts of a walk whose entries change, or for which the host is asked for pages, one or two per level.
const ATTEMPTS: u32 = 16;

/// Upper bound of T's levels.
const LEVELS: usize = 6;

/// T's mapping of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L1Leaf {
    /// The L1 frame of exactly the 4 KiB asked for.
    pub gfn: Gfn,
    /// Size of the page that T's leaf maps.
    pub level: Level,
    /// Rights that a shadow entry may have: [`allowed`](Self::allowed), without stores while D is clear, unless the
    /// access is a store.
    pub rights: L1Rights,
    /// Rights that T's entries allow together.
    pub allowed: L1Rights,
    /// Memory type of T's leaf.
    pub memory: MemoryType,
    /// Whether A is set along the path, as far as the format sets it.
    pub accessed: bool,
    /// Whether D is set in the leaf, or the format has no D.
    pub dirty: bool,
    tables: [Gfn; LEVELS],
    count: u8,
    /// The host address of the entry, and the rights of the entries above it.
    pub(super) place: Hva,
    pub(super) upper: Upper,
}

impl L1Leaf {
    /// The L1 frames of the table pages that were read, from the root on.
    pub fn tables(&self) -> &[Gfn] {
        &self.tables[..usize::from(self.count)]
    }
}

/// Why a walk of T ended without a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum L1Stop {
    /// T refuses the access: L1 handles the fault.
    Fault(L1Fault),
    /// Entries changed in every attempt, since L1 edits its table: let L2 repeat the access.
    Retry,
    /// The host cannot give a table page for this access without sleeping: call [`Host::resolve`] and walk again.
    /// [`GuestSpace::walk_l1`] does that. It returns this only if the host resolves the page but never lets it be read.
    Ask {
        /// Address of the entry in L1's memory.
        gpa: Gpa,
        /// Host address of the entry.
        hva: Hva,
        /// A load of the entry, or a store of A or D.
        access: Access,
    },
    /// The walk has set A or D in an entry whose frame's [stores are tracked](GuestSpace::track_writes): call
    /// [`GuestSpace::tell_l1_store`], and walk again. [`GuestSpace::walk_l1`] does that, and never returns this.
    Tracked {
        /// Address in L1's memory of the eight bytes that contain the entry.
        gpa: Gpa,
        /// Their present value.
        word: Word,
    },
    /// The host has no such page, or not now.
    Unreadable {
        /// Host address of the entry.
        hva: Hva,
        /// The host's answer.
        error: HostError,
    },
}

errors! { L1Stop:
    Self::Fault(L1Fault { access: L1Access { access, gpa, .. }, why, level, .. }) =>
        "L1's table refuses {access:?} at {gpa}: {why:?}, level {}", level.number();
    Self::Retry => "L1 changes its table meanwhile: access once more";
    Self::Ask { hva, .. } => "the host has to be asked for L1's table at {hva}";
    Self::Tracked { gpa, .. } =>
        "A or D was set in L1's entry at {gpa}, whose stores are tracked: tell the listeners";
    Self::Unreadable { hva, error } => "L1's table at {hva} cannot be read: {error}";
}

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Translates an access by L2 through L1's table, whose pages lie in these memslots, as L1's hardware would: checks
    /// it, and sets A and D. The result is a snapshot: L1 may change its table at once, and nothing is remembered.
    ///
    /// Sleeps in the host if a table page is absent, and in listeners if stores to a table page are tracked; then
    /// starts over. The host must implement [`Host::read`] and [`Host::compare_exchange`].
    ///
    /// ```
    /// use slat::{nested::*, table::{Word, formats::Npt4}, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::{AcqRel, Acquire}};
    ///
    /// /// The guest's memory: four pages at host address 0x10_0000.
    /// struct Ram(Vec<AtomicU64>);
    /// impl Host for Ram {
    ///     fn read(&self, hva: Hva) -> Option<Word> {
    ///         Some(Word(self.0[(hva.0 as usize - 0x10_0000) / 8].load(Acquire)))
    ///     }
    ///     fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
    ///         let word = &self.0[(hva.0 as usize - 0x10_0000) / 8];
    ///         Some(word.compare_exchange(old.0, new.0, AcqRel, Acquire).map(Word).map_err(Word))
    ///     }
    ///     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Err(HostError::Fault)
    ///     }
    /// }
    ///
    /// // L1's EPT for one page of L2: page 0 links 1, 1 links 2, 2 links 3, whose first entry maps L1's frame 0x1234, writable.
    /// let mut words = vec![0_u64; 4 * 512];
    /// for table in 0..3 {
    ///     words[table * 512] = (table as u64 + 1) << 12 | 0b111;
    /// }
    /// words[3 * 512] = 0x123_4000 | 6 << 3 | 0b011;
    /// let ram = Ram(words.into_iter().map(AtomicU64::new).collect());
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(ram).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 4, Hva(0x10_0000))))?;
    ///
    /// // L1's EPT pointer says: write-back, four levels, A and D, root at 0.
    /// let offered = EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) };
    /// let ept = EptTable::new(1 << 6 | 3 << 3 | 6, offered).expect("a pointer that VM entry takes");
    ///
    /// // L2 loads: A is set along the path, and D is clear, so that a shadow entry must not allow stores yet.
    /// let leaf = vm.memory().walk_l1(&mut idle, &ept, L1Access::new(Gpa(0x10), Access::Read))?;
    /// assert_eq!((leaf.gfn, leaf.rights.perms), (Gfn(0x1234), Perms::READ));
    /// // It stores: D is set.
    /// let leaf = vm.memory().walk_l1(&mut idle, &ept, L1Access::new(Gpa(0x10), Access::Write))?;
    /// assert!(leaf.dirty && leaf.rights.perms.allows(Access::Write));
    /// assert_eq!(vm.host().read(Hva(0x10_3000)), Some(Word(0x123_4000 | 3 << 8 | 6 << 3 | 0b011)));
    ///
    /// // It fetches: L1 gets an EPT violation.
    /// let fetch = L1Access::new(Gpa(0x10), Access::Fetch);
    /// let Err(L1Stop::Fault(fault)) = vm.memory().walk_l1(&mut idle, &ept, fetch) else { panic!() };
    /// let exit = EptExit::Violation { gpa: Gpa(0x10), qualification: 0b011_100 };
    /// assert_eq!(ept.injection(&fault), exit, "a fetch, of what may be read and written");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn walk_l1<T: L1Format>(
        &self,
        idle: &mut Idle,
        table: &T,
        access: L1Access,
    ) -> Result<L1Leaf, L1Stop> {
        let mut stop = L1Stop::Retry;
        for _ in 0..ATTEMPTS {
            match self.try_walk_l1(table, access) {
                Err(L1Stop::Tracked { gpa, word }) => self.tell_l1_store(idle, gpa, word),
                Err(ask @ L1Stop::Ask { hva, access, .. }) => {
                    stop = ask;
                    let resolved = self.vm.host.resolve(idle, hva, access);
                    resolved.map_err(|error| L1Stop::Unreadable { hva, error })?;
                }
                answer => return answer,
            }
        }
        Err(stop)
    }

    /// Calls the listeners of a tracked frame, for a store that [`try_walk_l1`](Self::try_walk_l1) has made: see
    /// [`L1Stop::Tracked`]. The listeners may sleep.
    pub fn tell_l1_store(&self, idle: &mut Idle, gpa: Gpa, word: Word) {
        let bytes = word.0.to_le_bytes();
        let store = TrackedStore { space: self.space.id, gpa, bytes: &bytes };
        tell_after(&self.space.watched.listeners(gpa.gfn()), idle, &store);
    }

    /// Like [`walk_l1`](Self::walk_l1), without sleeping: returns [`L1Stop::Ask`] or [`L1Stop::Tracked`] instead.
    pub fn try_walk_l1<T: L1Format>(&self, table: &T, access: L1Access) -> Result<L1Leaf, L1Stop> {
        let seat = self.vm.borrow_seat_without_idle();
        self.walk_l1_on(&seat, table, &access, true)
    }

    /// Returns what T maps at `gpa`, without an access: checks and sets nothing, and returns the rights. Never sleeps.
    pub fn look_l1<T: L1Format>(&self, table: &T, gpa: Gpa) -> Result<L1Leaf, L1Stop> {
        let seat = self.vm.borrow_seat_without_idle();
        self.walk_l1_on(&seat, table, &L1Access::new(gpa, Access::Read), false)
    }

    /// Walks once, in a section on `seat`, for an access or for a look.
    pub(super) fn walk_l1_on<T: L1Format>(
        &self,
        seat: &Seat,
        table: &T,
        access: &L1Access,
        is_access: bool,
    ) -> Result<L1Leaf, L1Stop> {
        let reading = self.space.memslots.read(&self.vm.reads, seat);
        let find = &mut |gfn| reading.version().find(gfn);
        self.walk_l1_in((&reading, find), table, access, is_access)
    }

    /// Walks in the section of `slots`, a version of the memslots in which `find` finds one.
    pub(super) fn walk_l1_in<T: L1Format>(
        &self,
        (slots, find): (&Reading<'_>, &mut impl FnMut(Gfn) -> Option<Slot>),
        table: &T,
        access: &L1Access,
        is_access: bool,
    ) -> Result<L1Leaf, L1Stop> {
        let memory = GuestWords::new(self.vm.host(), slots.within());
        for _ in 0..ATTEMPTS {
            let mut path = Path::descend(&memory, find, table, access)?;
            let mut stores = false;
            if is_access {
                stores = path.check(table, access)?;
                let changed = path.touch(table, &memory, access, stores, |gfn| {
                    // The page that was stored to is where these memslots have it.
                    KnownLogs::of(slots.version()).mark(Span::sized(gfn, 1));
                    self.space.watched.has_after_store(gfn)
                })?;
                if changed {
                    continue;
                }
            }
            return Ok(path.leaf(table, access, stores));
        }
        Err(L1Stop::Retry)
    }
}

/// An entry that was read.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// The L1 frame of its table page; the host address of the entry is next.
    table: Gfn,
    hva: Hva,
    is_read_only: bool,
    word: Word,
    entry: L1Entry,
}

/// The entries from the root to the leaf.
struct Path {
    used: [Option<Used>; LEVELS],
    count: usize,
    leaf: Used,
    level: Level,
    rights: L1Rights,
    /// Rights of the entries above the leaf.
    upper: L1Rights,
}

impl Path {
    /// Reads the entries, and combines their rights.
    fn descend<T: L1Format, H: Host>(
        memory: &GuestWords<'_, H>,
        find: &mut impl FnMut(Gfn) -> Option<Slot>,
        table: &T,
        access: &L1Access,
    ) -> Result<Self, L1Stop> {
        let (mut at, mut level) = table.start(access.gpa);
        let mut rights = L1Rights::ALL;
        let fault =
            |why, level, rights, table| L1Stop::Fault(L1Fault { access: *access, why, level, rights, table });
        if let Some(why) = table.refuses(access.gpa) {
            return Err(fault(why, level, rights, None));
        }
        let (mut used, mut count) = ([None; LEVELS], 0);
        loop {
            // A root may be wider than a page, and begin inside one. T's address is only looked up.
            let place = place_of(table, at, access.gpa, level);
            let gfn = place.gfn();
            let refused = |why| fault(why, level, rights, Some(gfn));
            let slot = find(gfn).ok_or_else(|| refused(Refusal::NoMemory))?;
            let hva = slot.hva_of(gfn) + place.offset();
            let word =
                memory.read(table, hva).ok_or(L1Stop::Ask { gpa: place, hva, access: Access::Read })?;
            let entry = table.entry(word, level).map_err(refused)?;
            let upper = rights;
            rights = rights.and(entry.rights);
            let now = Used { table: gfn, hva, is_read_only: slot.readonly, word, entry };
            (used[count], count) = (Some(now), count + 1);
            if entry.is_leaf || level == Level::K4 {
                return Ok(Self { used, count, leaf: now, level, rights: table.grants(rights), upper });
            }
            (at, level) = (entry.gfn.gpa(), level.down());
        }
    }

    /// Checks whether the access is allowed. Returns whether it sets D.
    fn check<T: L1Format>(&self, table: &T, access: &L1Access) -> Result<bool, L1Stop> {
        if table.demands(access).without(self.rights.of(access.user)) == Perms::NONE {
            return Ok(table.demands(access).allows(Access::Write));
        }
        Err(self.fault(Refusal::Rights, access, self.level, self.leaf.table))
    }

    fn fault(&self, why: Refusal, access: &L1Access, level: Level, table: Gfn) -> L1Stop {
        L1Stop::Fault(L1Fault { access: *access, why, level, rights: self.rights, table: Some(table) })
    }

    /// Sets A and D, the upper entries first. `mark` is called for each store, and returns whether it is tracked; if
    /// so, this ends with [`L1Stop::Tracked`]. Returns true if an entry has changed.
    fn touch<T: L1Format, H: Host>(
        &mut self,
        t: &T,
        memory: &GuestWords<'_, H>,
        access: &L1Access,
        stores: bool,
        mark: impl Fn(Gfn) -> bool,
    ) -> Result<bool, L1Stop> {
        for nth in 0..self.count {
            let Some(used) = self.used[nth] else { continue };
            let Used { table, hva, word, .. } = used;
            let touched = used.entry.touch | if stores { used.entry.touch_store } else { 0 };
            let wanted = Word(word.0 | touched);
            if wanted == word {
                continue;
            }
            if used.is_read_only {
                if T::ROM_IS_AN_ERROR {
                    let level = Level::new(self.level.number() + (self.count - 1 - nth) as u8);
                    return Err(self.fault(Refusal::NoMemory, access, level.unwrap_or(self.level), table));
                }
                continue;
            }
            let gpa = Gpa(table.gpa().0 + hva.offset());
            let stored = match memory.exchange(t, hva, (word, wanted)) {
                None => return Err(L1Stop::Ask { gpa, hva, access: Access::Write }),
                Some(Err(_)) => return Ok(true),
                Some(Ok(stored)) => stored,
            };
            if mark(table) {
                return Err(L1Stop::Tracked { gpa: Gpa(gpa.0 & !7), word: stored });
            }
            let now = Used { word: wanted, ..used };
            self.used[nth] = Some(now);
            if nth + 1 == self.count {
                self.leaf = now;
            }
        }
        Ok(false)
    }

    fn leaf<T: L1Format>(&self, table: &T, access: &L1Access, stores: bool) -> L1Leaf {
        let used = || self.used.iter().take(self.count).flatten();
        let Used { word, entry, .. } = self.leaf;
        let dirty = entry.touch_store & !word.0 == 0;
        let withheld = if dirty || stores { Perms::NONE } else { Perms::WRITE };
        let mut tables = [Gfn::default(); LEVELS];
        tables.iter_mut().zip(used()).for_each(|(table, used)| *table = used.table);
        let inside = access.gpa.gfn().0 & (table.pages(self.level) - 1);
        let is_set = |used: &Used| used.is_read_only || used.entry.touch & !used.word.0 == 0;
        let upper = Upper {
            rights: self.upper,
            accessed: used().take(self.count - 1).all(is_set),
            is_read_only: self.leaf.is_read_only,
        };
        L1Leaf {
            place: self.leaf.hva,
            upper,
            gfn: entry.gfn.base(self.level) + inside,
            level: self.level,
            rights: self.rights.without(withheld),
            allowed: self.rights,
            memory: entry.memory,
            accessed: used().all(|used| used.entry.touch & !used.word.0 == 0),
            dirty,
            tables,
            count: self.count as u8,
        }
    }
}
