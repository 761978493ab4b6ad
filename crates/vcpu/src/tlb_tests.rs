use super::*;
use std::collections::HashMap;

fn page(pfn: u64, level: Level) -> Translation {
    Translation { pfn: Pfn(pfn), level, perms: Perms::RWX, dirty: true }
}

fn holds(tlb: &mut Tlb, gfn: u64) -> bool {
    tlb.lookup(Gfn(gfn), Access::Read).is_some()
}

#[test]
fn the_tlb_keeps_translations_until_a_flush() {
    let mut tlb = Tlb::default();
    tlb.insert(Gfn(5), page(50, Level::K4));
    tlb.insert(Gfn(1024), page(512, Level::M2));
    assert_eq!(tlb.lookup(Gfn(5), Access::Read).unwrap().pfn, Pfn(50), "the TLB does not read the tables");
    tlb.flush(Span::new(Gfn(6), Gfn(1024)));
    tlb.flush(Span::new(Gfn(5), Gfn(5)));
    assert!(holds(&mut tlb, 5) && holds(&mut tlb, 1500), "no flush covers them");
    tlb.flush(Span::new(Gfn(1500), Gfn(1501)));
    assert!(!holds(&mut tlb, 1024), "a flush of one frame drops the whole large page");
    tlb.flush_all();
    assert!(!holds(&mut tlb, 5));
    assert_eq!((tlb.hits(), tlb.misses()), (3, 2));
}

#[test]
fn a_store_needs_permission_and_a_walk_that_set_dirty() {
    let mut tlb = Tlb::default();
    tlb.insert(Gfn(1), Translation { dirty: false, ..page(1, Level::K4) });
    assert!(holds(&mut tlb, 1) && tlb.lookup(Gfn(1), Access::Write).is_none());
    tlb.insert(Gfn(1), page(1, Level::K4));
    assert!(tlb.lookup(Gfn(1), Access::Write).is_some());
    tlb.insert(Gfn(2), Translation { perms: Perms::RX, ..page(2, Level::K4) });
    assert!(tlb.lookup(Gfn(2), Access::Write).is_none() && tlb.lookup(Gfn(2), Access::Fetch).is_some());
}

/// For any length: frames before and after the span stay, at every size.
#[test]
fn a_flush_ends_where_its_span_ends() {
    for len in [1, 2, 100, 127, 128, 129, 511, 512, 513, 1 << 18, 1 << 40] {
        let mut tlb = Tlb::default();
        let (start, end) = (1_u64 << 41 | 3 << 18, (1 << 41 | 3 << 18) + len);
        for gfn in [start - 1, start, end - 1, end] {
            tlb.insert(Gfn(gfn), page(gfn, Level::K4));
        }
        tlb.insert(Gfn(start - 512), page(512, Level::M2));
        tlb.flush(Span::new(Gfn(start), Gfn(end)));
        assert!(holds(&mut tlb, start - 1) && holds(&mut tlb, end), "{len}");
        assert!(holds(&mut tlb, start - 512), "{len}");
        assert!(!holds(&mut tlb, start) && !holds(&mut tlb, end - 1), "{len}");
    }
    let mut tlb = Tlb::default();
    tlb.insert(Gfn(7), page(7, Level::G1));
    tlb.flush(Span::new(Gfn(0), Gfn(u64::MAX)));
    assert!(!holds(&mut tlb, 7), "a flush of everything takes no longer than there are entries");
}

#[test]
fn the_oldest_goes_when_a_set_is_full() {
    for (level, capacity) in [(Level::K4, 1024), (Level::M2, 128), (Level::G1, 8)] {
        let mut tlb = Tlb::default();
        let at = |number: u64| Gfn(number << level.shift());
        for number in 0..5 * capacity {
            tlb.insert(at(number), page(number, level));
        }
        let held: Vec<_> =
            (0..5 * capacity).filter(|&number| tlb.lookup(at(number), Access::Read).is_some()).collect();
        assert_eq!(held, (4 * capacity..5 * capacity).collect::<Vec<_>>(), "{level:?}");
    }
}

#[test]
fn a_page_too_large_for_any_array_is_not_remembered() {
    let mut tlb = Tlb::default();
    for level in (4..).map_while(Level::new) {
        tlb.insert(Gfn(0), Translation { level, ..page(0, Level::K4) });
    }
    assert!(!holds(&mut tlb, 0));
}

/// Result of the comparison: hits, and entries that were lost without a flush.
struct Held {
    hits: usize,
    forgotten: usize,
}

/// Compares with a map, over random pages of every size. A TLB may lose entries; it may not invent them, nor
/// keep them after a flush.
fn against_a_map(flush: impl Fn(&mut Tlb, Span<Gfn>)) -> Result<Held, Gfn> {
    let (mut tlb, mut map, mut random) = (Tlb::default(), HashMap::new(), fastrand::Rng::with_seed(7));
    let mut held = Held { hits: 0, forgotten: 0 };
    let pages = |gfn: Gfn| [Level::K4, Level::M2, Level::G1].map(|level| (level, gfn.base(level)));
    for round in 0..300_000 {
        let state = random.u64(..);
        // 32 × 8 × 128 frames: more pages of each size than an array holds.
        let gfn = Gfn((state >> 32 & 31) << 18 | (state >> 37 & 7) << 9 | state >> 26 & 0x7f);
        let access = [Access::Read, Access::Write, Access::Fetch][(state >> 44) as usize % 3];
        let perms = [Perms::RX, Perms::RWX, Perms::READ.with(Perms::WRITE)][(state >> 46) as usize % 3];
        match state >> 57 {
            0 if (state >> 48).is_multiple_of(16) => {
                tlb.flush_all();
                map.clear();
            }
            0..4 => {
                let gfns = Span::sized(gfn, 1 << (state >> 50 & 15).min(10));
                flush(&mut tlb, gfns);
                map.retain(|&(level, base): &(Level, Gfn), _| {
                    !Span::sized(base, level.pages()).overlaps(&gfns)
                });
            }
            4..56 => {
                let (level, base) = pages(gfn)[[0, 0, 0, 0, 1, 1, 1, 2][(state >> 54) as usize % 8]];
                let new = Translation { perms, dirty: state >> 49 & 1 == 1, ..page(round, level) };
                tlb.insert(gfn, new);
                map.insert((level, base), new);
            }
            _ => {
                let known = pages(gfn).map(|page| map.get(&page).filter(|known| known.serves(access)));
                match tlb.lookup(gfn, access) {
                    Some(found) if !known.contains(&Some(&found)) => return Err(gfn),
                    Some(_) => held.hits += 1,
                    None => held.forgotten += usize::from(known.iter().any(Option::is_some)),
                }
            }
        }
    }
    Ok(held)
}

#[test]
fn the_tlb_may_forget_translations_but_never_invents_one() {
    let held = against_a_map(Tlb::flush).unwrap();
    assert!(held.hits > 10_000, "too few hits: {}", held.hits);
    assert!(held.forgotten > 0, "the TLB forgot nothing, though it is smaller than the map");
}

#[test]
fn negative_control_a_careless_flush_is_found() {
    let first_missed = |tlb: &mut Tlb, gfns: Span<Gfn>| tlb.flush(Span::new(gfns.start + 1, gfns.end));
    assert!(against_a_map(first_missed).is_err(), "the first frame of each span");
    let large_survives = |tlb: &mut Tlb, gfns: Span<Gfn>| {
        let large = tlb.lookup(gfns.start, Access::Read).filter(|found| found.level == Level::M2);
        tlb.flush(gfns);
        if let Some(large) = large {
            tlb.insert(gfns.start, large);
        }
    };
    assert!(against_a_map(large_survives).is_err(), "a large page of which a part is flushed");
}
