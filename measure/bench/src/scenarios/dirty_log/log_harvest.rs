//! The cost of a harvest, against the least possible: to look at everything, and one locked instruction for each page
//! that is dirty.
//!
//! Where D bits tell, what is looked at is the leaf tables: the floor's first part is slat's fastest look through them, as
//! aging takes it, which finds nothing. Where write protection tells, it is a bitmap, read in the order of memory. The
//! second part is twice taken: as many locked instructions as pages are dirty, at the price of one in the order of
//! memory; and the very ones that are needed, at the entries of those pages, and in the words of the bitmap.
//!
//! Each entrant finds the caches alike: every leaf has just been written.

use super::logged_vm::{name_of, set_log};
use super::{DirtyLogPerf, timed};
use crate::scenarios::threads_prelude::*;
use slat::age::Scan;
use slat::table::{Entry, Word};
use slat_series::kvm;

/// Pages of 1000 that are dirty.
const DENSITIES: [u32; 4] = [0, 10, 100, 1000];

/// The measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entrant {
    /// So many of 1000 pages are dirty.
    Harvest(Track, u32),
    /// The locked instructions that such a harvest needs.
    Edits(Track, u32),
    /// Every leaf table is looked at.
    Look,
    /// Every leaf table is read, in the order of memory.
    Read,
    /// As many words as a bitmap has are read.
    ReadBits,
    /// A locked instruction for every entry, in the order of memory.
    LockedRmw,
}

/// The memslots and the bitmap that the entrants run on.
struct Field {
    slots: Vec<(Track, LoggedSlot)>,
    /// As many words as a bitmap has.
    bits: Vec<AtomicU64>,
}

/// Microseconds, and whether each harvest reported the dirty pages and no other.
#[derive(Clone, Copy, Debug)]
struct Sample {
    us: f64,
    right: bool,
}

impl DirtyLogPerf {
    /// Measures memory of which every page is mapped.
    pub(super) fn harvest(&self, report: &mut Report, idle: &mut Idle, runs: u32) -> Result<()> {
        use Entrant::{Edits, Harvest, LockedRmw, Look, Read, ReadBits};
        let of_density = |&track| {
            DENSITIES.into_iter().flat_map(move |dirty| [Harvest(track, dirty), Edits(track, dirty)])
        };
        let entrants = self.track.iter().flat_map(of_density).chain([Look, Read, ReadBits, LockedRmw]);
        let field = Field::new(self.harvested, &self.track, idle)?;
        let laps = Lineup::run(runs, entrants, |entrant| entrant.sample(&field, idle))?;
        let of = |entrant| Series::of(laps.of(entrant), |sample: &Sample| sample.us);
        let memory = size::text(self.harvested);
        for &track in &self.track {
            let (scan, name) = match track {
                Track::DirtyBits => (of(Look), "every table looked at"),
                Track::Writes => (of(ReadBits), "the bitmap read"),
            };
            for (very_ones, edits) in [
                (false, "density x a locked instruction for each page"),
                (true, "the very locked instructions that are needed"),
            ] {
                let params = params! {
                    "test": "harvest", "memory": memory, "by": name_of(track), "baseline": format!("{name} + {edits}"),
                };
                for dirty in DENSITIES {
                    let density = f64::from(dirty) / 1000.0;
                    let edits = if very_ones {
                        of(Edits(track, dirty)).median()
                    } else {
                        density * of(LockedRmw).median()
                    };
                    let floor = Series::new(vec![scan.median() + edits]);
                    let (name, slat) = (format!("{}% dirty", density * 100.0), of(Harvest(track, dirty)));
                    report.rows.push(Row::compare(&name, params.clone(), "us", &floor, &slat));
                }
            }
        }
        let params = params! { "test": "harvest", "memory": memory, "baseline": "the tables read, linearly" };
        for (name, who) in
            [("every table looked at", Look), ("a locked instruction for each page", LockedRmw)]
        {
            report.rows.push(Row::compare(name, params.clone(), "us", &of(Read), &of(who)));
        }
        let name = "harvest: what is told is what was dirty";
        report.checks.push(Check::each(name, laps.all(), |sample| sample.right));
        Ok(())
    }
}

impl Entrant {
    /// The middle of many laps: a lap in which another process had the processor is not what is measured.
    fn sample(self, field: &Field, idle: &mut Idle) -> Result<Sample> {
        const LAPS: usize = 15;
        let mut laps = Vec::new();
        let mut right = true;
        for _ in 0..LAPS {
            let (time, good) = field.lap(self, idle)?;
            laps.push(us(time));
            right &= good;
        }
        Ok(Sample { us: Series::new(laps).median(), right })
    }
}

impl Field {
    fn new(bytes: u64, tracks: &[Track], idle: &mut Idle) -> Result<Self> {
        let mut slots = Vec::new();
        for &track in tracks {
            let slot = LoggedSlot::new(DirtyLog::bitmap(), track, idle, [bytes; 2])?;
            set_log(&slot.mapped.vm, idle, &slot.mapped.slot, true)?;
            slots.push((track, slot));
        }
        Ok(Self { slots, bits: (0..bytes / PAGE_SIZE / 64).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Makes pages dirty, and harvests them: see the module's header.
    fn harvest(&self, track: Track, dirty: u32, idle: &mut Idle) -> Result<(Duration, bool)> {
        let (slot, pages) = self.dirty(track, dirty);
        let slots = slot.mapped.vm.memory();
        if track == Track::Writes {
            for &page in &pages {
                slots.mark_dirty(Span::sized(Gfn(page), 1));
            }
        }
        slot.write(|gfn| is_drawn(gfn.0, dirty));
        let (took, harvest) = timed(|| slots.harvest(idle, slot.mapped.slot.id))?;
        let good = harvest.iter().map(|page| page.page).eq(pages);
        let began = Instant::now();
        harvest.commit();
        Ok((took + began.elapsed(), good))
    }

    /// A slot, and those of its pages that are dirty.
    fn dirty(&self, of: Track, dirty: u32) -> (&LoggedSlot, Vec<u64>) {
        let found = self.slots.iter().find(|(track, _)| *track == of);
        let slot = &found.expect("a slot for each way to track").1;
        (slot, (0..slot.mapped.pages).filter(|&page| is_drawn(page, dirty)).collect())
    }

    fn lap(&self, who: Entrant, idle: &mut Idle) -> Result<(Duration, bool)> {
        let (slot, pages) = match who {
            Entrant::Harvest(track, dirty) => return self.harvest(track, dirty, idle),
            Entrant::Edits(track, dirty) => self.dirty(track, dirty),
            _ => (&self.slots[0].1, Vec::new()),
        };
        if let Entrant::Edits(Track::Writes, _) = who {
            for page in &pages {
                self.bits[(page / 64) as usize].fetch_or(1 << (page % 64), Relaxed);
            }
        }
        slot.rest();
        let MappedSlot { vm, slot, tables, .. } = &slot.mapped;
        timed(|| {
            match who {
                Entrant::Look => {
                    return Ok(!vm.memory().lockless(idle).is_young_by(slot.gfns, Scan::detect()));
                }
                Entrant::Read => tables.read(),
                Entrant::LockedRmw => tables.locked_rmw(),
                Entrant::Edits(..) => {
                    tables.locked_rmw_of(&pages);
                    for word in self.bits.iter().filter(|word| word.load(Relaxed) != 0) {
                        black_box(word.swap(0, Relaxed));
                    }
                }
                Entrant::ReadBits | Entrant::Harvest(..) => read_bits(&self.bits),
            }
            Ok(true)
        })
    }
}

fn read_bits(bits: &[AtomicU64]) {
    let mut any = [0; 8];
    for words in bits.as_chunks::<8>().0 {
        any.iter_mut().zip(words).for_each(|(any, word)| *any |= word.load(Relaxed));
    }
    black_box(any);
}

// The time to switch a log on: up front, or gradually, where a fresh log says that every page is dirty and pages are
// tracked as they are cleared.
//
// The memory is large and mostly empty, as that of a guest that was given more than it uses: a table for each 2 MiB, with
// one page in it, and a part in which every page is mapped. The work that gradual logs leave undone is done by the first clear of
// everything: it is timed too, whole and by its longest piece.

/// The size of one clear request of a VMM: 64 MiB.
const PIECE: u64 = (64 << 20) / Level::K4.bytes();

/// The result of one lap.
#[derive(Clone, Copy, Debug)]
struct Enabling {
    enable: Duration,
    /// Of a gradual log: all of it, and the longest piece.
    clear: Duration,
    longest: Duration,
    /// Whether pages and log were afterwards what they should be.
    right: bool,
}

/// Each beside the enabling of all of it up front.
const ENABLE_FIGURES: [Figure<Enabling>; 3] = [
    ("enabled gradually", "us", |sample| Some(us(sample.enable))),
    ("enabled gradually, and all of it cleared", "us", |sample| Some(us(sample.enable + sample.clear))),
    ("the longest clear of 64M", "us", |sample| Some(us(sample.longest))),
];

impl DirtyLogPerf {
    /// Measures memory that is sparse but for its first part.
    pub(super) fn enable(&self, report: &mut Report, idle: &mut Idle, runs: u32) -> Result<()> {
        let mut slots = Vec::new();
        for &track in &self.track {
            let log = DirtyLog::bitmap().track(track);
            for (gradual, log) in [(false, log), (true, log.initially_set())] {
                let slot = LoggedSlot::new(log, track, idle, [self.sparse, self.dense])?;
                slots.push((track, gradual, slot));
            }
        }
        let laps = Lineup::run(runs, slots, |(_, gradual, slot)| enable_lap(slot, *gradual, idle))?;
        let params = params! {
            "test": "enable", "memory": size::text(self.sparse), "every page mapped in": size::text(self.dense),
            "baseline": "up front",
        };
        for &track in &self.track {
            let both = [false, true].map(|gradual| laps.find(|slot| (slot.0, slot.1) == (track, gradual)));
            for row in Row::compare_each(&ENABLE_FIGURES, &params, both) {
                let first = row.name == ENABLE_FIGURES[0].0;
                let claim = first.then_some(kvm::ENABLE[0] / kvm::ENABLE[1]);
                let row = row.of(name_of(track)).answering(first.then_some(PatchSeries::Kvm));
                report.rows.push(row.claiming(claim));
            }
        }
        report.checks.push(Check::each(
            "enable: up front every page is tracked and none dirty; gradually it is the other way round",
            laps.all(),
            |sample| sample.right,
        ));
        Ok(())
    }
}

fn enable_lap(slot: &LoggedSlot, gradual: bool, idle: &mut Idle) -> Result<Enabling> {
    let (vm, slots, of) = (&slot.mapped.vm, slot.mapped.vm.memory(), &slot.mapped.slot);
    let pages = of.gfns.len();
    let mut bits = vec![0; pages.div_ceil(64) as usize];
    slot.write(|_| true);
    let (enable, ()) = timed(|| set_log(vm, idle, of, true))?;

    let state = (slots.dirty_bits(idle, of.id, &mut bits)?, slot.untracked());
    let mut right = state == if gradual { (pages, slot.mapped.pages) } else { (0, 0) };
    let (mut clear, mut longest) = (Duration::ZERO, if gradual { Duration::ZERO } else { enable });
    if gradual {
        let mut cleared = 0;
        for first in (0..pages).step_by(PIECE as usize) {
            let (piece, bits) = (PIECE.min(pages - first), &bits[(first / 64) as usize..]);
            let (time, count) = timed(|| slots.clear_dirty(idle, of.id, first, piece, bits))?;
            cleared += count;
            (clear, longest) = (clear + time, longest.max(time));
        }
        right &= (cleared, slot.untracked()) == (pages, 0);
    }
    set_log(vm, idle, of, false)?;
    Ok(Enabling { enable, clear, longest, right })
}

// One memslot of mapped pages whose log is on or off: a test sets for each page whether it has been written.

/// See the module's header.
pub struct LoggedSlot {
    pub mapped: MappedSlot,
    /// The bit of a leaf that a store sets, or needs.
    noted_in: u64,
}

impl LoggedSlot {
    /// The slot whose log tracks by `track`: see [`MappedSlot::new`].
    pub fn new(log: DirtyLog, track: Track, idle: &mut Idle, bytes: [u64; 2]) -> Result<Self> {
        let noted_in = match track {
            Track::Writes => Ept4::WRITE,
            Track::DirtyBits => Ept4::DIRTY,
        };
        Ok(Self { mapped: MappedSlot::new(log.track(track), idle, bytes, |_| ())?, noted_in })
    }

    /// Each page of which `written` says so has been stored to, and the others have not since they were last tracked.
    pub fn write(&self, written: impl Fn(Gfn) -> bool) {
        let all = Ept4::WRITE | Ept4::DIRTY | Ept4::ACCESSED;
        self.mapped.set_leaves(|gfn, word| {
            Word((word.0 | all) & if written(gfn) { u64::MAX } else { !self.noted_in })
        });
    }

    /// Clears Accessed and Dirty of each page.
    pub fn rest(&self) {
        self.mapped.set_leaves(|_, word| Word(word.0 & !(Ept4::DIRTY | Ept4::ACCESSED)));
    }

    /// Counts the pages whose next store would not be noticed.
    pub fn untracked(&self) -> u64 {
        let words = self.mapped.tables.linked().flat_map(|(_, table)| table).map(Entry::load);
        words.filter(|&word| Ept4::is_present(word) && word.0 & self.noted_in != 0).count() as u64
    }
}
