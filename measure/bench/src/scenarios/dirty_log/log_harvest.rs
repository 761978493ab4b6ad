//! The cost of a harvest, against the least possible: to look at everything, and one locked instruction for each page
//! that is dirty.
//!
//! Where D bits tell, what is looked at is the leaf tables: the floor's first part is slat's fastest look through them, as
//! aging takes it, which finds nothing. Where write protection tells, it is a bitmap, read in the order of memory. The
//! second part is twice taken: as many locked instructions as pages are dirty, at the price of one in the order of
//! memory; and the very ones that are needed, at the entries of those pages, and in the words of the bitmap.
//!
//! Each entrant finds the caches alike: every leaf has just been written.

use super::logged_slot::LoggedSlot;
use super::logged_vm::set_log;
use super::{DirtyLogPerf, name_of, timed};
use crate::scenarios::threads_prelude::*;
use crate::threads::mapped_slot::{MappedSlot, is_drawn};
use slat::age::Scan;

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
    pub(super) fn harvest(&self, report: &mut Report, idle: &mut Idle, runs: u32) -> Result<(), Error> {
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
    fn sample(self, field: &Field, idle: &mut Idle) -> Result<Sample, Error> {
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
    fn new(bytes: u64, tracks: &[Track], idle: &mut Idle) -> Result<Self, Error> {
        let mut slots = Vec::new();
        for &track in tracks {
            let slot = LoggedSlot::new(DirtyLog::bitmap(), track, idle, [bytes; 2])?;
            set_log(&slot.mapped.vm, idle, &slot.mapped.slot, true)?;
            slots.push((track, slot));
        }
        Ok(Self { slots, bits: (0..bytes / PAGE_SIZE / 64).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Makes pages dirty, and harvests them: see the module's header.
    fn harvest(&self, track: Track, dirty: u32, idle: &mut Idle) -> Result<(Duration, bool), Error> {
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

    fn lap(&self, who: Entrant, idle: &mut Idle) -> Result<(Duration, bool), Error> {
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
