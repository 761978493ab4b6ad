//! What a harvest costs, against the least that it could: to look at everything, and one locked instruction for each page
//! that is dirty.
//!
//! Where D bits tell, what is looked at is the leaf tables: the floor's first part is slat's fastest look through them, as
//! aging takes it, which finds nothing. Where write protection tells, it is a bitmap, read in the order of memory. The
//! second part is twice taken: as many locked instructions as pages are dirty, at the price of one in the order of
//! memory; and the very ones that are needed, at the entries of those pages, and in the words of the bitmap.
//!
//! Each entrant finds the caches alike: every leaf has just been written.

use super::host::{memory, set_log};
use super::mapped_slot::{MappedSlot, on_first_cpu};
use crate::bench::harness::{Series, rounds};
use crate::bench::report::{Check, Row, params};
use slat::age::Scan;
use slat::{DirtyLog, Gfn, Idle, Span, Track};
use slat_cli::error::Error;
use slat_cli::size;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Pages of 1000 that are dirty.
const DENSITIES: [u32; 4] = [0, 10, 100, 1000];

/// Who runs.
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

/// What they run on.
struct Field {
    mapped: Vec<(Track, MappedSlot)>,
    /// As many words as a bitmap has.
    bits: Vec<AtomicU64>,
}

/// Microseconds, and whether each harvest told what was dirty.
#[derive(Clone, Copy, Debug)]
struct Sample {
    us: f64,
    right: bool,
}

/// Rows and checks for `bytes`, every page of which is mapped.
pub fn measure(bytes: u64, tracks: &[Track], runs: usize) -> Result<(Vec<Row>, Vec<Check>), Error> {
    let of_density = |&track| {
        DENSITIES
            .map(|dirty| [Entrant::Harvest(track, dirty), Entrant::Edits(track, dirty)])
            .into_iter()
            .flatten()
    };
    let floors = [Entrant::Look, Entrant::Read, Entrant::ReadBits, Entrant::LockedRmw];
    let entrants: Vec<Entrant> = tracks.iter().flat_map(of_density).chain(floors).collect();
    let samples = on_first_cpu(|idle| {
        let field = Field::new(bytes, tracks, idle)?;
        rounds(runs, &entrants, |entrant| entrant.sample(&field, idle))
    })?;
    let of = |entrant| {
        let at = entrants.iter().position(|&other| other == entrant).unwrap_or(0);
        Series::new(samples[at].iter().map(|sample: &Sample| sample.us).collect())
    };
    let memory = size::text(bytes);
    let mut rows = Vec::new();
    for &track in tracks {
        let (scan, name) = match track {
            Track::DirtyBits => (of(Entrant::Look), "every table looked at"),
            Track::Writes => (of(Entrant::ReadBits), "the bitmap read"),
        };
        for very_ones in [false, true] {
            let edits = if very_ones {
                "the very locked instructions that are needed"
            } else {
                "density x a locked instruction for each page"
            };
            let params = params! {
                "test": "harvest", "memory": memory, "by": super::name_of(track),
                "baseline": format!("{name} + {edits}"),
            };
            for dirty in DENSITIES {
                let density = f64::from(dirty) / 1000.0;
                let edits = if very_ones {
                    of(Entrant::Edits(track, dirty)).median()
                } else {
                    density * of(Entrant::LockedRmw).median()
                };
                let floor = Series::new(vec![scan.median() + edits]);
                let name = format!("{}% dirty", density * 100.0);
                let slat = of(Entrant::Harvest(track, dirty));
                rows.push(Row::compare(&name, params.clone(), "us", &floor, &slat));
            }
        }
    }
    let params = params! { "test": "harvest", "memory": memory, "baseline": "the tables read, linearly" };
    for (name, who) in
        [("every table looked at", Entrant::Look), ("a locked instruction for each page", Entrant::LockedRmw)]
    {
        rows.push(Row::compare(name, params.clone(), "us", &of(Entrant::Read), &of(who)));
    }
    let wrong = samples.iter().flatten().filter(|sample| !sample.right).count();
    let check = Check {
        name: "harvest: what is told is what was dirty".into(),
        ok: wrong == 0,
        detail: format!("not so in {wrong} of {} samples", samples.iter().flatten().count()),
    };
    Ok((rows, vec![check]))
}

impl Entrant {
    /// The middle of many laps: a lap in which another process had the processor is not what is measured.
    fn sample(self, field: &Field, idle: &mut Idle) -> Result<Sample, Error> {
        const LAPS: usize = 15;
        let mut laps = Vec::new();
        let mut right = true;
        for _ in 0..LAPS {
            let (time, good) = match self {
                Self::Harvest(track, dirty) => field.harvest(track, dirty, idle)?,
                floor => field.floor(floor, idle),
            };
            laps.push(time.as_secs_f64() * 1e6);
            right &= good;
        }
        Ok(Sample { us: Series::new(laps).median(), right })
    }
}

impl Field {
    fn new(bytes: u64, tracks: &[Track], idle: &mut Idle) -> Result<Self, Error> {
        let gfns = memory(bytes);
        let mut mapped = Vec::new();
        for &track in tracks {
            let ground = MappedSlot::new(DirtyLog::bitmap().track(track), idle, gfns, gfns)?;
            set_log(&ground.vm, idle, &ground.slot, true)?;
            mapped.push((track, ground));
        }
        Ok(Self { mapped, bits: (0..gfns.len() / 64).map(|_| AtomicU64::new(0)).collect() })
    }

    fn of(&self, track: Track) -> &MappedSlot {
        let found = self.mapped.iter().find(|(other, _)| *other == track);
        &found.unwrap_or(&self.mapped[0]).1
    }

    /// Makes pages dirty, and harvests them.
    fn harvest(&self, track: Track, dirty: u32, idle: &mut Idle) -> Result<(Duration, bool), Error> {
        let ground = self.of(track);
        let pages = pages(ground, dirty);
        let slots = ground.vm.slots();
        if track == Track::Writes {
            for &page in &pages {
                slots.mark_dirty(Span::sized(Gfn(page), 1));
            }
        }
        ground.write(track, |gfn| is_dirty(gfn.0, dirty));
        let began = Instant::now();
        let harvest = slots.harvest(idle, ground.slot.id)?;
        let took = began.elapsed();
        let good = harvest.iter().map(|page| page.page).eq(pages);
        let began = Instant::now();
        harvest.commit();
        Ok((took + began.elapsed(), good))
    }

    fn read_bits(&self) -> u64 {
        let mut any = [0; 8];
        for words in self.bits.as_chunks::<8>().0 {
            any.iter_mut().zip(words).for_each(|(any, word)| *any |= word.load(Relaxed));
        }
        any.into_iter().fold(0, |all, any| all | any)
    }

    /// One of the others.
    fn floor(&self, who: Entrant, idle: &mut Idle) -> (Duration, bool) {
        let (ground, pages) = match who {
            Entrant::Edits(track, dirty) => (self.of(track), pages(self.of(track), dirty)),
            _ => (&self.mapped[0].1, Vec::new()),
        };
        if let Entrant::Edits(Track::Writes, _) = who {
            for page in &pages {
                self.bits[(page / 64) as usize].fetch_or(1 << (page % 64), Relaxed);
            }
        }
        ground.rest();
        let (began, mut good) = (Instant::now(), true);
        match who {
            Entrant::Look => {
                let mut walk = ground.vm.lockless(idle);
                good = !walk.is_young_by(ground.slot.gfns, Scan::detect());
            }
            Entrant::Read => ground.tables.read(),
            Entrant::LockedRmw => ground.tables.locked_rmw(),
            Entrant::Edits(..) => {
                ground.tables.locked_rmw_of(&pages);
                for word in self.bits.iter().filter(|word| word.load(Relaxed) != 0) {
                    black_box(word.swap(0, Relaxed));
                }
            }
            Entrant::ReadBits | Entrant::Harvest(..) => {
                black_box(self.read_bits());
            }
        }
        (began.elapsed(), good)
    }
}

/// The numbers of those that are dirty, spread evenly and in no pattern.
fn pages(ground: &MappedSlot, dirty: u32) -> Vec<u64> {
    (0..ground.slot.gfns.len()).filter(|&page| is_dirty(page, dirty)).collect()
}

fn is_dirty(page: u64, dirty: u32) -> bool {
    let mixed = (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) % 1000 < u64::from(dirty)
}
