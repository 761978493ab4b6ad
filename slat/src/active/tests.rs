use super::*;
use crate::addr::Level;
use crate::table::Word;

const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));
const M2: u64 = Level::M2.bytes();

fn gfns(start: u64, end: u64) -> Span<Gfn> {
    Span::new(Gfn(start), Gfn(end))
}

fn hvas(start: u64, len: u64) -> Span<Hva> {
    Span::sized(Hva(start), len)
}

/// Returns the page of `gfn`. Frame 0 is backed by the host address 1 GiB.
fn page(gfn: u64) -> Page {
    Page::small(Gfn(gfn), Hva(Level::G1.bytes() + (gfn << 12)))
}

impl Active {
    fn stamp_for(&self, epoch: Epoch, gfn: u64) -> Result<Stamp, Unconfirmed> {
        self.stamp(epoch, page(gfn), Level::M2, Word::OLDEST)
    }

    fn stamp_now(&self, gfn: u64) -> Result<Stamp, Unconfirmed> {
        self.stamp_for(self.epoch(), gfn)
    }
}

#[test]
fn a_wide_invalidation_moves_the_epoch_when_it_begins_and_when_it_ends() {
    let active = Active::new();
    let epoch = active.epoch();
    assert!(active.stamp_for(epoch, 5).is_ok());
    let ticket = active.begin(gfns(0, 10), NOWHERE);
    assert_eq!(active.stamp_for(epoch, 15), Err(Unconfirmed::Moved), "one began");
    let epoch = active.epoch();
    assert_eq!(active.stamp_for(epoch, 5), Err(Unconfirmed::Covered));
    assert!(active.stamp_for(epoch, 15).is_ok(), "others are not disturbed");
    assert!(active.nowhere(epoch, gfns(10, 11)) && !active.nowhere(epoch, gfns(9, 11)));
    drop(ticket);
    assert_eq!(active.stamp_for(epoch, 15), Err(Unconfirmed::Moved), "one ended");
    assert!(!active.nowhere(epoch, gfns(10, 11)));
    assert!(active.stamp_now(5).is_ok());
}

#[test]
fn a_narrow_invalidation_is_told_to_its_regions_and_to_no_others() {
    let active = Active::new();
    let (epoch, here) = (active.epoch(), page(5).hva.0);
    let other = (1..9)
        .map(|region| page(512 * region))
        .find(|page| RegionLine::of(page.hva) != RegionLine::of(Hva(here)));
    let other = other.expect("neighbours have different lines").gfn.0;
    let ticket = active.begin(gfns(0, 0), hvas(here, 4096));
    assert_eq!(active.stamp_for(epoch, 5), Err(Unconfirmed::Covered));
    let beside = active.stamp_for(epoch, 6).expect("not this page");
    assert_eq!(beside.free, Level::K4, "a large page would cover it");
    let elsewhere = active.stamp_for(epoch, other).expect("another region");
    assert_eq!((elsewhere.newest, elsewhere.free), (Word::hole(Version::default()), Level::M2));
    assert!(beside.newest == Word::hole(ticket.version()));
    drop(ticket);
    assert_eq!(active.epoch(), epoch, "a slot that was looked up is still true");
    assert_eq!(active.stamp_for(epoch, 5).map(|stamp| stamp.free), Ok(Level::M2));
}

#[test]
fn an_invalidation_of_a_few_regions_is_told_to_each_and_one_of_many_is_wide() {
    let active = Active::new();
    let (epoch, first) = (active.epoch(), page(0).hva.0);
    let few = active.begin(gfns(0, 0), hvas(first + M2 / 2, 15 * M2));
    for region in 0..16 {
        let (inside, outside) = (512 * region + if region == 0 { 256 } else { 0 }, 512 * region + 511);
        assert_eq!(active.stamp_for(epoch, inside), Err(Unconfirmed::Covered), "region {region}");
        assert_eq!(active.stamp_for(epoch, outside).is_ok(), region == 15);
    }
    let many = active.begin(gfns(0, 0), hvas(first + M2 / 2, 16 * M2));
    assert_eq!(active.stamp_for(epoch, 100_000), Err(Unconfirmed::Moved));
    drop((few, many));
    assert!((0..16).all(|region| active.stamp_now(512 * region).is_ok()));
}

#[test]
fn a_stamp_fills_holes_up_to_its_own_age_and_up_to_those_that_the_fault_has_seen() {
    let active = Active::new();
    let before = active.stamp_now(0).expect("none is active");
    let ticket = active.begin(gfns(0, 1), NOWHERE);
    let version = ticket.version();
    drop(ticket);
    assert!(Word::hole(version) > before.newest, "numbered after the stamp: too new");
    let seen = active.stamp(active.epoch(), page(0), Level::M2, Word::hole(version)).expect("it has ended");
    assert!(Word::hole(version) <= seen.newest);
    assert_eq!(active.stamp_now(1), Ok(seen), "the region has heard of it now");
    let next = active.begin(gfns(0, 0), hvas(page(0).hva.0, 4096));
    assert!(Word::hole(next.version()) > seen.newest);
}

#[test]
fn for_pages_larger_than_a_region_all_places_are_looked_at() {
    let active = Active::new();
    let far = active.begin(gfns(0, 0), hvas(page(100_000).hva.0, 4096));
    let large = |gfn| active.stamp(active.epoch(), page(gfn), Level::G1, Word::OLDEST);
    assert_eq!(large(5).map(|stamp| stamp.free), Ok(Level::M2), "part of the same 1 GiB");
    assert_eq!(large(100_001).map(|stamp| stamp.free), Ok(Level::K4));
    assert_eq!(large(100_000), Err(Unconfirmed::Covered));
    assert_eq!(
        large(300_000).map(|stamp| (stamp.free, stamp.newest)),
        Ok((Level::G1, Word::hole(far.version())))
    );
}

#[test]
fn an_invalidation_sees_who_is_announced_to_its_regions_after_it() {
    let active = Active::new();
    let at = |gfn| active.begin(gfns(0, 0), hvas(page(gfn).hva.0, 4096));
    let mut older = at(5);
    assert!(!older.is_followed());
    let newer = at(6);
    assert!(older.is_followed() && !newer.is_followed());
    assert!(!older.must_repeat(false), "it took nothing");
    older.removes();
    assert!(older.must_repeat(false));
    assert!(older.version() > newer.version() && !older.is_followed());
    let (version, epoch) = (older.version(), active.epoch());
    drop(at(8));
    assert!(!older.must_repeat(true) && older.version() == version, "the second pass took nothing");
    older.removes();
    assert!(!older.must_repeat(true) && older.version() > version, "there is no third pass");
    assert!(active.epoch() != epoch && !older.is_followed(), "it is wide");
    let wide = active.begin(gfns(0, 512), NOWHERE);
    drop(at(7));
    assert!(!wide.is_followed(), "it moves the epoch instead");
}

#[test]
fn debts_of_others_are_adopted_until_they_are_paid() {
    let active = Active::new();
    let a = active.begin(gfns(0, 10), NOWHERE);
    let b = active.begin(gfns(20, 30), Span::new(Hva(0x1000), Hva(0x2000)));
    assert!(b.unflushed(a.version()) && !b.unflushed(b.version()));
    assert!(b.unflushed_over(gfns(5, 6)), "a covers it");
    assert!(!b.unflushed_over(gfns(15, 16)), "a does not");
    assert!(a.unflushed_over(gfns(15, 16)), "b invalidates host addresses: may be anywhere");
    a.flushed();
    assert!(!b.unflushed(a.version()));
    let [inside, beside] = [0x1000, 0x2000].map(|start| Span::sized(Hva(start), 0x1000));
    assert!(a.unflushed_behind(inside) && !a.unflushed_behind(beside) && !b.unflushed_behind(inside));
    b.flushed();
    assert!(!a.unflushed_behind(inside));
}

#[test]
fn the_set_grows_where_there_is_memory() {
    let active = Active::with_places(2);
    let two = [0, 1].map(|at| active.begin(gfns(at, at + 1), NOWHERE));
    assert!(active.try_begin(gfns(2, 3), NOWHERE).is_none(), "that would allocate");
    #[cfg(feature = "std")]
    crate::inject::every(crate::inject::Point::Alloc, 1, || assert!(!active.places.grow()));
    let epoch = active.epoch();
    let more: std::vec::Vec<_> = (2..50).map(|at| active.begin(gfns(at, at + 1), NOWHERE)).collect();
    assert_eq!(active.stamp_for(epoch, 60), Err(Unconfirmed::Moved));
    assert_eq!(active.stamp_now(49), Err(Unconfirmed::Covered));
    let narrow = active.begin(gfns(0, 0), hvas(page(70).hva.0, 4096));
    assert_eq!(active.stamp_now(70), Err(Unconfirmed::Covered), "listed as one of those beyond");
    drop(narrow);
    assert!(active.stamp_now(70).is_ok());
    assert!(two[0].unflushed(more[47].version()) && !more[47].unflushed(more[47].version()));
    drop(more);
    assert_eq!(active.places.used().count(), 2, "the others are looked at only while one is taken");
    assert!(active.stamp_now(49).is_ok());
}

#[test]
fn widening_is_a_new_number_over_a_larger_range() {
    let active = Active::new();
    let mut a = active.begin(gfns(0, 0), hvas(page(5).hva.0, 4096));
    let b = active.begin(gfns(900, 901), NOWHERE);
    let (first, epoch) = (a.version(), active.epoch());
    assert!(active.stamp_for(epoch, 0).is_ok(), "published to the page");
    a.widen(gfns(0, 512));
    assert!(a.version() > b.version());
    assert_eq!(active.stamp_for(epoch, 0), Err(Unconfirmed::Covered));
    assert_eq!(active.stamp_for(epoch, 700), Err(Unconfirmed::Moved), "to all, by way of the epoch");
    assert!(active.stamp_now(700).is_ok());
    let (again, epoch) = (a.version(), active.epoch());
    a.widen(gfns(5, 6));
    assert_eq!((a.version(), active.epoch()), (again, epoch), "nothing new");
    a.widen(gfns(0, 1 << 18));
    assert_eq!(active.stamp_for(epoch, 300_000), Err(Unconfirmed::Moved));
    assert_eq!(active.stamp_now(700), Err(Unconfirmed::Covered));
    assert!(b.unflushed(first) && b.unflushed(a.version()), "holes of any of its numbers are its debts");
    drop((a, b));
    assert!(active.stamp_now(0).is_ok());
}
