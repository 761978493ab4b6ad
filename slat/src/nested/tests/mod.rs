//! Walks of tables in L1's memory, which the tests write word by word.
//!
//! | file | question |
//! |---|---|
//! | `cases`, `cases_arm_riscv` | does each bit act as in the manuals, and does L1 get the report of its hardware? |
//! | `encoded` | do tables that our own formats encoded decode to the same? |
//! | `manual` | the oracle: a slow walker that follows the manuals, bit by bit |
//! | `worlds` | tables of every format with every parameter, beside the oracle's |
//! | `bits` | does each bit, and each pair of bits, of an entry act as in the manuals? |
//! | `random` | do walks of hostile tables end as the oracle's? |
//! | `guest_tables` | the same for a guest's own page tables |
//! | `guest_world` | does a guest get the same bytes on one stage as on two? |
//! | `memory` | tables that are swapped out, gone, read-only, in no memslot, or change meanwhile; the dirty log |
//! | `shadows` | does any vCPU use what L0 or L1 has taken away, whatever both do? |
//! | `large`, `gibibyte` | are leaves as large as they can be, and how are they edited? |
//! | `broadcast` | does a flush for all vCPUs wait for walks of what it flushes? |
//! | `sections` | is the host called inside sections, and outside, as it is promised? |
//! | `windows` | does a fault of L2 miss an event at any moment during it? |
//! | `published` | do the published bugs of other shadow MMUs happen here? |
//! | `neighbours` | which pages does a fault map beside the one that L2 accesses? |
//! | `computed` | a host whose memory is a function, for `aging`, `many_places`, `neighbours`, `reclaim` and `stretches` |

mod aging;
mod bits;
mod broadcast;
mod cases;
mod cases_arm_riscv;
mod computed;
mod encoded;
mod first;
mod gibibyte;
mod guest_tables;
mod guest_world;
mod large;
mod manual;
mod many_places;
mod memory;
mod neighbours;
mod published;
mod random;
mod reclaim;
mod sections;
mod shadows;
mod stretches;
mod windows;
mod worlds;

use crate::nested::*;
use crate::sync::prim::{AtomicU8, AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::formats::Npt4;
use crate::*;
use alloc::vec::Vec;

/// Number of frames of L1's memory.
const FRAMES: u64 = 64;
/// The first frame of a read-only memslot.
const READ_ONLY: u64 = 48;
/// The first frame that is in no memslot.
const NOWHERE: u64 = 56;
/// The first frames once more, where physical addresses are high.
const ALIAS: Gfn = Gfn(1 << 20);
const ALIASES: u64 = 8;
const BASE: Hva = Hva(0x7000_0000);
/// Bits that hardware ignores in every entry of every format here.
const IGNORED: u64 = 1 << 9;

/// The host's treatment of a page.
const THERE: u8 = 0;
/// Absent until it is resolved.
const OUT: u8 = 1;
/// Readable; not writable until it is resolved for that.
const SHARED: u8 = 2;
/// Cannot be resolved.
const BROKEN: u8 = 3;
/// Resolved, and still absent.
const NEVER: u8 = 4;
/// Pending.
const LATE: u8 = 5;

/// L1's memory, and its host.
struct Ram {
    words: Vec<AtomicU64>,
    pages: Vec<AtomicU8>,
    /// Number of exchanges that find that L1 has changed the entry by [`IGNORED`].
    meddles: AtomicU64,
    resolved: AtomicU64,
}

impl Ram {
    fn new() -> Self {
        Self {
            words: (0..FRAMES * 512).map(|_| AtomicU64::new(0)).collect(),
            pages: (0..FRAMES).map(|_| AtomicU8::new(THERE)).collect(),
            meddles: AtomicU64::new(0),
            resolved: AtomicU64::new(0),
        }
    }

    fn page(&self, hva: Hva) -> &AtomicU8 {
        &self.pages[((hva.0 - BASE.0) >> PAGE_SHIFT) as usize]
    }

    fn word(&self, hva: Hva) -> &AtomicU64 {
        assert!(hva.0.is_multiple_of(8), "{hva}");
        &self.words[((hva.0 - BASE.0) / 8) as usize]
    }
}

impl Host for Ram {
    fn read(&self, hva: Hva) -> Option<Word> {
        let there = matches!(self.page(hva).load(Relaxed), THERE | SHARED);
        there.then(|| Word(self.word(hva).load(Relaxed)))
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        if self.page(hva).load(Relaxed) != THERE {
            return None;
        }
        if self.meddles.load(Relaxed) > 0 {
            self.meddles.fetch_sub(1, Relaxed);
            let word = self.word(hva);
            word.store(word.load(Relaxed) ^ IGNORED, Relaxed);
        }
        let exchanged = self.word(hva).compare_exchange(current.0, new.0, Relaxed, Relaxed);
        Some(exchanged.map(Word).map_err(Word))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.resolved.fetch_add(1, Relaxed);
        let page = self.page(hva);
        match page.load(Relaxed) {
            BROKEN => return Err(HostError::Poisoned),
            LATE => return Err(HostError::Pending),
            NEVER => {}
            OUT if access != Access::Write => page.store(SHARED, Relaxed),
            _ => page.store(THERE, Relaxed),
        }
        Ok(HostPage::PLAIN)
    }
}

/// A VM whose guest is L1.
struct World {
    idle: Idle,
    vm: Vm<Npt4, Ram>,
}

impl World {
    fn new() -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Npt4, _>::builder(Ram::new()).build().unwrap();
        let at = |frame: u64| BASE + (frame << PAGE_SHIFT);
        let ram = Slot::new(SlotId(0), Gfn(0), READ_ONLY, at(0)).log_dirty();
        let rom = Slot::new(SlotId(1), Gfn(READ_ONLY), NOWHERE - READ_ONLY, at(READ_ONLY)).readonly();
        let alias = Slot::new(SlotId(2), ALIAS, ALIASES, at(0)).log_dirty();
        let all = [ram, rom, alias];
        vm.memory().commit(&mut idle, |tx| all.into_iter().try_for_each(|slot| tx.create(slot))).unwrap();
        let mut world = Self { idle, vm };
        world.clean();
        world
    }

    /// Cleans all pages.
    fn clean(&mut self) {
        for id in [SlotId(0), SlotId(2)] {
            self.vm.memory().harvest(&mut self.idle, id).unwrap().commit();
        }
    }

    /// Returns the dirty frames of tables, in order; those of the alias after all others.
    fn dirty(&self) -> Vec<u64> {
        let frames = (0..FRAMES).chain(ALIAS.0..ALIAS.0 + ALIASES);
        frames.filter(|&frame| self.vm.memory().is_dirty(Gfn(frame))).collect()
    }

    fn put(&self, frame: u64, entry: u64, word: u64) {
        self.vm.host().words[(frame * 512 + entry) as usize].store(word, Relaxed);
    }

    fn get(&self, frame: u64, entry: u64) -> u64 {
        self.vm.host().words[(frame * 512 + entry) as usize].load(Relaxed)
    }

    fn set_page(&self, frame: u64, state: u8) {
        self.vm.host().pages[frame as usize].store(state, Relaxed);
    }

    fn walk<T: L1Format>(&mut self, table: &T, access: L1Access) -> Result<L1Leaf, L1Stop> {
        self.vm.memory().walk_l1(&mut self.idle, table, access)
    }

    /// Returns the fault that the walk ends with.
    fn fault<T: L1Format>(&mut self, table: &T, access: L1Access) -> L1Fault {
        match self.walk(table, access) {
            Err(L1Stop::Fault(fault)) => fault,
            other => panic!("{other:?} instead of a fault"),
        }
    }

    /// Returns the report to L1.
    fn told<T: L1Format>(&mut self, table: &T, access: L1Access) -> T::Injection {
        table.injection(&self.fault(table, access))
    }
}

/// Frames of the tables by level, where a test has one chain: the root's is `CHAIN[0]`.
const CHAIN: [u64; 5] = [8, 16, 17, 18, 19];

const ALL: [Access; 3] = [Access::Read, Access::Write, Access::Fetch];

/// EPT with every feature, and a pointer to `root`.
fn ept(root: u64, levels: u64, accessed_dirty: bool) -> EptTable {
    let features =
        EptFeatures { five_levels: true, large_1g: true, accessed_dirty: true, ..EptFeatures::of(46) };
    EptTable::new(root << 12 | u64::from(accessed_dirty) << 6 | (levels - 1) << 3 | 6, features).unwrap()
}

const LONG_MODE: NptMode = NptMode {
    levels: 4,
    nx: true,
    pat: 0x0007_0406_0007_0406,
    physical_bits: 46,
    large_1g: true,
    smep: false,
};

/// `VTCR_EL2` of `bits` bits of address from level `start` on, 48 of output, with HA and HD.
fn vtcr(bits: u64, start: u64) -> u64 {
    3 << 21 | 5 << 16 | (2 - start) << 6 | (64 - bits)
}

const STAGE2: Stage2Features = Stage2Features { hardware_ad: true, xnx: false, fwb: false };
const G_STAGE: GStageFeatures = GStageFeatures { adue: true, pbmte: true, mxr: false };
