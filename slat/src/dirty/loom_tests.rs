//! Marks, permissions and zapped leaves during a harvest. Tables are reduced to one entry.

use super::arm::arm_entry;
use super::mark::tables_before_marks;
use crate::addr::{Gfn, Level, Span};
use crate::host::VcpuId;
use crate::loom_tests::{RACE, UnsafeCell, explore, explore_within, finds, thread};
use crate::slots::bitmap::Bitmap;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::entry::{Entry, Word};
use crate::table::format::Kind;
use crate::table::formats::Ept4;
use crate::table::retire::Unlinked;
use crate::table::{Format, Version};
use crate::tlb::shootdown::{Tlb, Translations};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The fault marks the page before it may be written.
    MarkFirst,
    /// The harvest arms the page before it takes the mark.
    ArmFirst,
    /// The invalidation zaps the leaf before it marks its D bit.
    MarkLate,
    /// The harvest looks at the marks before the tables.
    MarksFirst,
}

const WRITE: u64 = Ept4::WRITE;
const LOST: &str = "stores that no harvest will find";

fn leaf(bits: u64) -> Word {
    Word(1 << 12 | 5 | bits)
}

struct Shared {
    bitmap: Bitmap,
    entry: Entry,
    /// The vCPU's accesses before it marked.
    done: UnsafeCell<u64>,
}

/// A fault gives a permission and marks the page during a harvest. Before that, the page is marked, or the whole chunk,
/// or nothing.
fn permission(marked: bool, all: bool, mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bitmap = Bitmap::new(1, 0, all).unwrap();
        if marked {
            bitmap.mark(0);
        }
        let shared = Arc::new(Shared { bitmap, entry: Entry::new(leaf(0)), done: UnsafeCell::new(0) });
        let theirs = shared.clone();
        let vcpu = thread::spawn(move || {
            if mistake == Mistake::MarkFirst {
                theirs.bitmap.mark(0);
            }
            // SAFETY: loom checks that no thread reads it meanwhile.
            theirs.done.with_mut(|done| unsafe { *done = 1 });
            let _ = theirs.entry.cas(leaf(0), leaf(WRITE));
            if mistake != Mistake::MarkFirst {
                theirs.bitmap.mark(0);
            }
        });
        let Shared { bitmap, entry, done } = &*shared;
        let arm = || arm_entry::<Ept4>(entry, entry.load(), Level::K4, false);
        if mistake == Mistake::ArmFirst {
            arm();
        }
        if bitmap.is_whole(0) {
            bitmap.divide(0).unwrap();
        }
        let taken = bitmap.take(0, 1);
        if mistake != Mistake::ArmFirst {
            arm();
        }
        if taken != 0 && !marked && !all {
            // SAFETY: loom checks that it was written before.
            assert_eq!(done.with(|done| unsafe { *done }), 1);
        }
        vcpu.join().expect("the vCPU ends");
        assert!(entry.load() != leaf(WRITE) || bitmap.word(0) == 1, "{LOST}");
    }
}

/// An invalidation zaps a leaf with its D bit set during the last harvest.
fn goes(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let bitmap = Bitmap::new(1, 0, false).unwrap();
        let entry = Entry::new(leaf(WRITE | Ept4::DIRTY));
        let shared = Arc::new(Shared { bitmap, entry, done: UnsafeCell::new(0) });
        let theirs = shared.clone();
        let zap = thread::spawn(move || {
            let mut word = theirs.entry.load();
            loop {
                let dirty = word.0 & Ept4::DIRTY != 0;
                if dirty && mistake != Mistake::MarkLate {
                    theirs.bitmap.mark(0);
                }
                match theirs.entry.cas(word, Word::hole(Version(1))) {
                    Ok(()) if dirty && mistake == Mistake::MarkLate => break theirs.bitmap.mark(0),
                    Ok(()) => break,
                    Err(found) => word = found,
                }
            }
        });
        let Shared { bitmap, entry, .. } = &*shared;
        let mut told = mistake == Mistake::MarksFirst && bitmap.take(0, 1) != 0;
        let word = entry.peek();
        if word.kind::<Ept4>(Level::K4) == Kind::Leaf {
            told |= entry.cas(word, leaf(WRITE)).is_ok();
        }
        tables_before_marks();
        told |= mistake != Mistake::MarksFirst && bitmap.take(0, 1) != 0;
        assert!(told, "{LOST}");
        zap.join().expect("the zap ends");
    }
}

#[test]
fn a_permission_is_marked_or_taken() {
    explore(permission(false, false, Mistake::None));
}

#[test]
fn a_permission_is_marked_or_taken_where_the_page_is_dirty_already() {
    explore(permission(true, false, Mistake::None));
}

#[test]
fn a_permission_is_marked_or_taken_where_all_pages_are_dirty() {
    explore(permission(false, true, Mistake::None));
}

/// One harvest divides a chunk that is dirty as a whole, another harvest takes it.
fn divides() {
    let bitmap = Arc::new(Bitmap::new(1, 0, true).unwrap());
    let theirs = bitmap.clone();
    let takes = thread::spawn(move || {
        if theirs.is_whole(0) {
            theirs.divide(0).unwrap();
        }
        assert_eq!(theirs.take(0, 1), 1, "{LOST}");
    });
    bitmap.divide(0).unwrap();
    takes.join().expect("it ends");
}

#[test]
fn a_chunk_that_one_harvest_divides_another_takes() {
    explore(divides);
}

#[test]
fn mistake_marked_before_it_may_be_written() {
    // Or the harvest sees the mark, and not the accesses before it.
    let mistake = || permission(false, false, Mistake::MarkFirst);
    assert!(finds(LOST, mistake()) || finds(RACE, mistake()));
}

#[test]
fn mistake_armed_before_the_mark_is_taken() {
    for (marked, all) in [(false, false), (true, false), (false, true)] {
        assert!(finds(LOST, permission(marked, all, Mistake::ArmFirst)));
    }
}

#[test]
fn a_leaf_that_goes_is_told() {
    explore(goes(Mistake::None));
}

#[test]
fn mistake_marked_after_the_leaf_went() {
    assert!(finds(LOST, goes(Mistake::MarkLate)));
}

#[test]
fn mistake_marks_before_tables() {
    assert!(finds(LOST, goes(Mistake::MarksFirst)));
}

/// A vCPU's translation of the page: while it has one, it stores without reading the entry.
struct Cached(bool);

impl Translations for Cached {
    fn flush_all(&mut self) {
        self.0 = false;
    }
    fn flush(&mut self, _: Span<Gfn>) {
        self.0 = false;
    }
}

/// A guest stores twice while a harvest by D bits copies the page; walkers set D by exchanges that order nothing.
fn copies(flush: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let entry = Entry::new(leaf(WRITE | Ept4::DIRTY));
        let shared = Arc::new((entry, Tlb::new(1), AtomicU64::new(0)));
        let theirs = shared.clone();
        let vcpu = thread::spawn(move || {
            let (entry, tlb, contents) = &*theirs;
            let (vcpu, mut cached) = (tlb.vcpu(VcpuId(0)), Cached(true));
            tlb.enter(vcpu, &mut cached);
            for value in [1, 2] {
                if Tlb::kicked(vcpu) {
                    tlb.catch_up(vcpu, &mut cached);
                }
                while !cached.0 {
                    let word = entry.peek();
                    cached.0 = word.0 & Ept4::DIRTY != 0 || entry.touch(word, Ept4::DIRTY);
                }
                contents.store(value, Relaxed);
            }
            Tlb::leave(vcpu);
        });
        let (entry, tlb, contents) = &*shared;
        assert!(arm_entry::<Ept4>(entry, entry.peek(), Level::K4, true), "it was written");
        if flush {
            drop(tlb.shoot_down(Span::new(Gfn(0), Gfn(1)), Unlinked::default(), |_| {}));
        }
        let copy = contents.load(Relaxed);
        vcpu.join().expect("the vCPU ends");
        assert!(copy == 2 || entry.peek().0 & Ept4::DIRTY != 0, "{LOST}");
    }
}

#[test]
fn a_store_is_copied_or_logged() {
    explore_within(3, copies(true));
}

#[test]
fn mistake_copied_before_the_flush() {
    assert!(finds(LOST, copies(false)));
}
