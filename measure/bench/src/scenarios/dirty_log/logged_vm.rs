//! The VM of tests with a guest, on a host without data memory, as `Arithmetic`, whose pages are as large as one likes.
//!
//! ```text
//! gfn 0 ─▶ logged memory, in pages of the size asked for          1 TiB ─▶ elsewhere, in pages of 4K
//! ```

use crate::scenarios::threads_prelude::*;
pub use crate::threads::arithmetic::Pages;
use slat::SlotError;

/// A VM whose format has D bits.
pub type LoggedVm = Vm<Ept4, Pages>;

/// Frames for a vCPU that faults beside logged memory.
pub const ELSEWHERE: Span<Gfn> = Span::new(Gfn(1 << 28), Gfn(1 << 29));

/// The most memory that is logged.
pub const MOST: u64 = ELSEWHERE.start.0 * PAGE_SIZE;

/// A host with pages of this size.
pub fn host(level: Level) -> Pages {
    Pages { level, small_from: hva_of(ELSEWHERE.start), sleeps_ns: 0, is_silent: false }
}

/// Builds the VM with these memslots, and brings in memory for their tables.
pub fn build(builder: Builder<Ept4, Pages>, slots: &[Slot]) -> Result<LoggedVm> {
    let logged = slots.iter().filter(|slot| slot.gfns.end <= ELSEWHERE.start);
    let leaf_tables = logged.map(|slot| slot.gfns.len() / Level::M2.pages()).sum::<u64>();
    table_pool::reserve(leaf_tables * PAGE_SIZE * 65 / 64 + (64 << 20));
    with_slots(builder, slots.iter().copied()).map_err(Error::Machine)
}

/// So much memory from frame 0 on.
pub fn memory(bytes: u64) -> Span<Gfn> {
    Span::sized(Gfn(0), bytes / PAGE_SIZE)
}

/// How stores are noticed, in words.
pub fn name_of(track: Track) -> &'static str {
    match track {
        Track::Writes => "write protection",
        Track::DirtyBits => "D bits",
    }
}

/// Switches a slot's log on or off.
pub fn set_log(vm: &Vm<Ept4, impl Host>, idle: &mut Idle, slot: &Slot, on: bool) -> Result<(), SlotError> {
    vm.memory().commit(idle, |tx| tx.set_log_dirty(slot.id, on)).map(drop)
}

// The ways to log: those of slat, and the one before them; `vcpus.rs` has their steps, which the tests time.
//
// | | enable | get | clear |
// |---|---|---|---|
// | before | large pages zapped, small ones write-protected | each leaf write-protected; bits copied | |
// | auto | split; each page tracked | harvest: bits taken, those pages tracked again | |
// | manual | all is dirty, nothing tracked | bits copied | split; what is cleared is tracked |
// | ring | as auto | harvest of what is left: a full ring was emptied at once | |
//
// When the log is disabled large pages come back in place; before, all of the slot is zapped, and faults bring it back.
//
// **Before** stands behind one mutex, goes leaf by leaf over whole slots, and flushes once for each step. It has slat's
// bitmap; what it takes to clear its bits, after the leaves have been protected, is not charged.

/// How a VM logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Before,
    Auto(Track),
    Manual(Track),
    Ring(RingSize),
}

/// The preparation of large pages before a log begins or ends: a missing page is neither split nor made large in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zap {
    Nothing,
    /// Each entry of a slot, and one flush.
    Entries,
    /// The entries of each 2 MiB are zapped, and its table is; then the next.
    TableByTable,
    /// All tables of a slot are unhooked, and flushed once.
    AtOnce,
}

/// A way, when it splits large pages, and what it does beside the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrant {
    pub way: Way,
    pub splitting: Splitting,
    pub lock: MmuLock,
    pub zap_to_enable: Zap,
    pub zap_to_disable: Zap,
}

impl Entrant {
    /// The way as slat ships it, or as it was before.
    pub fn new(way: Way, splitting: Splitting) -> Self {
        let (lock, zap) = match way {
            Way::Before => (MmuLock::Exclusive, Zap::Entries),
            _ => (MmuLock::None, Zap::Nothing),
        };
        Self { way, splitting, lock, zap_to_enable: zap, zap_to_disable: zap }
    }

    pub fn name(self) -> String {
        match self.way {
            Way::Before => "before".into(),
            Way::Auto(track) => name_of(track).into(),
            Way::Manual(track) => format!("manual, {}", name_of(track)),
            Way::Ring(_) => "ring".into(),
        }
    }

    /// Whether the first harvest may tell of pages that were not written since the log began: all of a fresh log that
    /// says so, all of a large page that was written before it was split.
    pub fn first_may_be_spurious(self, size: Level) -> bool {
        match self.way {
            Way::Manual(_) => true,
            Way::Auto(track) => track == Track::DirtyBits && size > Level::K4,
            Way::Before | Way::Ring(_) => false,
        }
    }

    /// A VM for it, on pages of `size`.
    pub fn builder(self, size: Level, vcpus: u32) -> Builder<Ept4, Pages> {
        self.builder_on(host(size), vcpus)
    }

    /// The same on this host.
    pub fn builder_on(self, host: Pages, vcpus: u32) -> Builder<Ept4, Pages> {
        let log = match self.way {
            // Then the log begins without touching a leaf: what is done to them is done beside it.
            Way::Before => DirtyLog::bitmap().initially_set(),
            Way::Auto(track) => DirtyLog::bitmap().track(track),
            Way::Manual(track) => DirtyLog::bitmap().track(track).initially_set(),
            Way::Ring(size) => DirtyLog::ring(size),
        };
        let builder = Vm::builder(host).vcpus(vcpus).baseline(Baseline::NONE.mmu_lock(self.lock));
        builder.dirty_log(log.splitting(self.splitting))
    }
}

// The guest: one access to each of its pages, in order, a load or a store as the pass has it.

/// One time over all pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Other numbers, other pages that are stored to.
    pub number: u64,
    /// Of 100 accesses, so many are stores.
    pub percent: u32,
    /// Frames from one access to the next.
    pub step: u64,
}

/// The pages that a log has reported, against those that the guest has written. They are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Written by the guest.
    pub written: u64,
    /// Of those, not reported.
    pub lost: u64,
    /// Reported, and not written.
    pub spurious: u64,
}

impl Pass {
    /// A store to every page.
    pub const fn of_stores(number: u64) -> Self {
        Self { number, percent: 100, step: 1 }
    }

    /// Whether its access to `gfn` is a store. The same in every run, and in no pattern.
    pub fn stores_to(self, gfn: Gfn) -> bool {
        gfn.0.is_multiple_of(self.step)
            && (self.percent >= 100 || is_drawn(gfn.0 ^ self.number << 40, self.percent * 10))
    }

    /// Compares what a log has reported, a bit a frame from frame 0 on, with the pages that the pass stored to.
    pub fn compare(self, reported: &[u64]) -> Verdict {
        let mut verdict = Verdict::default();
        for frame in 0..reported.len() * 64 {
            let reported = reported[frame / 64] >> (frame % 64) & 1 == 1;
            let written = self.stores_to(Gfn(frame as u64));
            verdict.written += u64::from(written);
            verdict.lost += u64::from(written && !reported);
            verdict.spurious += u64::from(reported && !written);
        }
        verdict
    }
}

/// A pass as it goes.
#[derive(Debug)]
pub struct Sweep {
    /// The remaining pages.
    pub pages: Span<Gfn>,
    pub pass: Pass,
}

impl Program for Sweep {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let gfn = self.pages.start;
        if self.pages.is_empty() {
            return Ok(Step::Stop);
        }
        if self.pass.stores_to(gfn) {
            core.store(gfn.gpa(), &gfn.0.to_le_bytes())?;
        } else {
            core.load(gfn.gpa(), &mut [0; 8])?;
        }
        self.pages.start = (gfn + self.pass.step).min(self.pages.end);
        Ok(Step::Next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_store_to_as_many_pages_as_they_say_and_to_others_each_time() {
        let stored = |number, percent, step| {
            let pass = Pass { number, percent, step };
            (0..10_000).map(Gfn).filter(move |&gfn| pass.stores_to(gfn)).collect::<Vec<_>>()
        };
        assert_eq!((stored(1, 100, 1).len(), stored(1, 0, 1).len()), (10_000, 0));
        assert_eq!(stored(1, 100, 512).len(), 20);
        assert!((2_700..3_300).contains(&stored(1, 30, 1).len()));
        assert_ne!(stored(1, 30, 1), stored(2, 30, 1));
        assert_eq!(stored(2, 30, 1), stored(2, 30, 1));
    }

    #[test]
    fn what_is_lost_and_what_is_spurious_is_counted() {
        let pass = Pass { number: 1, percent: 100, step: 2 };
        assert_eq!(pass.compare(&[0; 3]), Verdict { written: 96, lost: 96, spurious: 0 });
        let mut reported = [0x5555_5555_5555_5555; 3];
        assert_eq!(pass.compare(&reported), Verdict { written: 96, lost: 0, spurious: 0 });
        reported[1] |= 0b1010;
        reported[2] = 0;
        assert_eq!(pass.compare(&reported), Verdict { written: 96, lost: 32, spurious: 2 });
    }
}
