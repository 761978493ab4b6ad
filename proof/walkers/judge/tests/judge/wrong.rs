//! Negative controls: walkers with one mistake each, which the judge must find.

use crate::soft::Soft;
use slat::table::formats::{Ept4, Ept4NoAd, Npt4};
use slat::{Access, Format, Gpa, Idle, Level, PAGE_SIZE, Pfn};
use slat_judge::{Answer, Difference, Fixed, Machine, Quirk, Ram, Verdict, judge, stale};
use std::fmt;

/// The mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// An access reaches the neighbouring page.
    Address,
    /// An allowed load is refused.
    Refuses,
    /// A forbidden fetch succeeds.
    Allows,
    /// A fault reports the level above.
    Level,
    /// A fault reports another address.
    FaultAddress,
    /// A store goes to the next word.
    StoreBeside,
    /// Dirty is not set.
    NoDirty,
    /// Accessed is set in an entry that is not on the path.
    Stray,
    /// Nothing is forgotten.
    NeverForgets,
}

/// A software vCPU that makes the mistake now and then.
struct Wrong {
    soft: Soft<Npt4>,
    how: How,
    accesses: u64,
    quirks: Vec<Quirk>,
}

impl Wrong {
    fn new(how: How) -> Self {
        Self { soft: Soft::new(), how, accesses: 0, quirks: Vec::new() }
    }
}

/// Returns word number `index` of the table `root`.
fn word(root: Pfn, index: u64) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut((root.address() + index * 8) as usize)
}

// SAFETY: memory is that of the machine inside.
unsafe impl Machine for Wrong {
    const SHOWS_STALE: bool = true;

    fn name(&self) -> &'static str {
        "software that goes wrong"
    }

    fn ram(&self) -> Ram {
        self.soft.ram()
    }

    fn fixed(&self) -> &[Fixed] {
        self.soft.fixed()
    }

    fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
        self.accesses += 1;
        let answer = self.soft.access(root, gpa, access, value);
        if !self.accesses.is_multiple_of(7) {
            return answer;
        }
        match (self.how, answer) {
            (How::Address, Answer::Through { value }) => Answer::Through { value: value ^ PAGE_SIZE },
            (How::Refuses, Answer::Through { .. }) if access == Access::Read => {
                let why = slat_judge::FaultWhy::Unsaid;
                Answer::Fault { why, level: None, gpa: None, allowed: None }
            }
            (How::Allows, Answer::Fault { .. }) if access == Access::Fetch => Answer::Through { value: 0 },
            (How::Level, Answer::Fault { why, level: Some(level), gpa, allowed }) => {
                Answer::Fault { why, level: Some(level.up()), gpa, allowed }
            }
            (How::FaultAddress, Answer::Fault { why, level, gpa: Some(gpa), allowed }) => {
                Answer::Fault { why, level, gpa: Some(gpa + 8), allowed }
            }
            (How::StoreBeside, Answer::Through { .. }) if access == Access::Write => {
                // Undo the right store, and store to the next word.
                if let Answer::Through { value: now } = self.soft.access(root, gpa, Access::Read, 0) {
                    self.soft.access(root, gpa, Access::Write, !now);
                }
                answer
            }
            (How::NoDirty, Answer::Through { .. }) if access == Access::Write => {
                clear_dirty(root, gpa);
                answer
            }
            (How::Stray, _) => {
                set_accessed_beside(root, gpa);
                answer
            }
            _ => answer,
        }
    }

    fn flush(&mut self) {
        if self.how != How::NeverForgets {
            self.soft.flush();
        }
    }

    fn quirks(&self) -> &[Quirk] {
        &self.quirks
    }

    fn log(&mut self, line: fmt::Arguments<'_>) {
        self.soft.log(line);
    }
}

/// Clears the D bit of the leaf that a store has just set.
fn clear_dirty(root: Pfn, gpa: Gpa) {
    let (mut table, mut level) = (root, Npt4::ROOT_LEVEL);
    loop {
        let entry = word(table, Npt4::index(gpa.gfn(), level) as u64);
        // SAFETY: a table in use.
        let found = slat::table::Word(unsafe { entry.read_volatile() });
        if !Npt4::is_table(found, level) {
            // SAFETY: as above.
            return unsafe { entry.write_volatile(found.0 & !Npt4::DIRTY) };
        }
        (table, level) = (Npt4::pfn(found), level.down());
    }
}

/// Sets the A bit of a link that is not on the path to `gpa`, if one has it clear.
fn set_accessed_beside(root: Pfn, gpa: Gpa) {
    let own = Npt4::index(gpa.gfn(), Npt4::ROOT_LEVEL);
    // SAFETY: tables in use, of which nothing else is told now.
    let load = |entry: *mut u64| slat::table::Word(unsafe { entry.read_volatile() });
    let is_old =
        |entry: &*mut u64| Npt4::is_table(load(*entry), Level::M2) && load(*entry).0 & Npt4::ACCESSED == 0;
    let others = (0..512).filter(|&index| index != own as u64).map(|index| word(root, index));
    let below = others.clone().map(load).filter(|word| Npt4::is_table(*word, Npt4::ROOT_LEVEL));
    let tables = below.flat_map(|link| (0..512).map(move |index| word(Npt4::pfn(link), index)));
    if let Some(entry) = others.chain(tables).find(is_old) {
        // SAFETY: as above.
        unsafe { entry.write_volatile(load(entry).0 | Npt4::ACCESSED) };
    }
}

fn judged(how: How) -> Verdict {
    // A link without its A bit that is on no look-up's path is rare.
    let lookups = if matches!(how, How::Stray) { 20_000 } else { 2_000 };
    judge::<Npt4, _>(&mut Wrong::new(how), &mut Idle::take().unwrap(), 1, lookups)
}

#[test]
fn negative_control_whatever_a_walker_does_wrong_is_found() {
    for how in [
        How::Address,
        How::Refuses,
        How::Allows,
        How::Level,
        How::FaultAddress,
        How::StoreBeside,
        How::NoDirty,
        How::Stray,
    ] {
        let verdict = judged(how);
        assert!(verdict.differences > 0, "{how:?}: {verdict:?}");
    }
}

#[test]
fn negative_control_a_walker_of_another_format_is_found() {
    // Accessed and Dirty where the pointer does not enable them.
    let mut machine = Soft::<Ept4>::new();
    let verdict = judge::<Ept4NoAd, _>(&mut machine, &mut Idle::take().unwrap(), 1, 2_000);
    assert!(verdict.differences > 100, "{verdict:?}");
}

#[test]
fn negative_control_a_walker_that_never_forgets_is_found() {
    let mut idle = Idle::take().unwrap();
    let verdict = stale::<Npt4, _>(&mut Wrong::new(How::NeverForgets), &mut idle, 1);
    assert_eq!(verdict.differences, 64, "seen every time, and gone never: {verdict:?}");
}

#[test]
fn negative_control_a_walker_that_always_forgets_shows_nothing_stale() {
    struct Forgetful(Soft<Npt4>);
    // SAFETY: as for `Wrong`.
    unsafe impl Machine for Forgetful {
        const SHOWS_STALE: bool = true;
        fn name(&self) -> &'static str {
            "software that forgets"
        }
        fn ram(&self) -> Ram {
            self.0.ram()
        }
        fn access(&mut self, root: Pfn, gpa: Gpa, access: Access, value: u64) -> Answer {
            self.0.flush();
            self.0.access(root, gpa, access, value)
        }
        fn flush(&mut self) {}
        fn log(&mut self, line: fmt::Arguments<'_>) {
            self.0.log(line);
        }
    }
    let verdict = stale::<Npt4, _>(&mut Forgetful(Soft::new()), &mut Idle::take().unwrap(), 1);
    assert_eq!(verdict.differences, 64, "gone every time, and never seen: {verdict:?}");
}

#[test]
fn a_difference_that_a_quirk_explains_is_counted_under_its_name() {
    fn explains(difference: &Difference) -> bool {
        difference.access == Access::Read && matches!(difference.expected, Answer::Through { .. })
    }
    let mut machine = Wrong::new(How::Refuses);
    machine.quirks = vec![Quirk { name: "some loads are refused", explains }];
    let verdict = judge::<Npt4, _>(&mut machine, &mut Idle::take().unwrap(), 1, 2_000);
    assert!(verdict.passed() && verdict.quirks["some loads are refused"] > 10, "{verdict:?}");
    let line = "0 differences; the emulator's own: some loads are refused ×";
    assert!(machine.soft.lines.borrow().iter().any(|said| said.contains(line)));
}
