//! Bytes of guest memory against a plain copy, on a host whose pages are absent most of the time.

use super::*;
use crate::table::formats::Ept4;
use crate::*;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::vec::Vec;
use std::{format, thread, vec};

const BASE: Hva = Hva(0x4000_0000);
const PAGES: u64 = 4;

/// Memory of which the host gives a number of words after each question.
struct Ram {
    words: Vec<AtomicU64>,
    /// Words that are given before the host has to be asked again.
    left: AtomicI64,
    /// Their number after a question; 0 refuses all.
    given: i64,
    /// The exchange of this word panics.
    bad: AtomicU64,
}

impl Ram {
    fn new(given: i64) -> Self {
        let words = (0..PAGES * 512).map(|_| AtomicU64::new(0)).collect();
        Self { words, left: AtomicI64::new(0), given, bad: AtomicU64::new(u64::MAX) }
    }

    fn word(&self, hva: Hva) -> Option<&AtomicU64> {
        assert!(Idle::take().is_none(), "inside a section");
        (self.left.fetch_sub(1, SeqCst) > 0).then(|| &self.words[((hva.0 - BASE.0) / 8) as usize])
    }
}

impl Host for Ram {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        assert_eq!(hva.offset(), 0);
        self.left.store(self.given, SeqCst);
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        self.word(hva).map(|word| Word(word.load(SeqCst)))
    }

    fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
        assert_ne!((hva.0 - BASE.0) / 8, self.bad.load(SeqCst), "the bad word");
        self.word(hva).map(|word| word.compare_exchange(old.0, new.0, SeqCst, SeqCst).map(Word).map_err(Word))
    }
}

/// The guest's frames 16 to 19, and frame 20 read-only with the contents of 19.
fn vm(idle: &mut Idle, ram: Ram) -> Vm<Ept4, Ram> {
    let vm = Vm::<Ept4, _>::builder(ram).build().unwrap();
    let ram = Slot::new(SlotId(0), Gfn(16), PAGES, BASE).log_dirty();
    let rom = Slot::new(SlotId(1), Gfn(16 + PAGES), 1, BASE + 3 * PAGE_SIZE).readonly();
    vm.memory().commit(idle, |tx| tx.create(ram).and_then(|()| tx.create(rom))).unwrap();
    vm
}

const FIRST: Gpa = Gpa(16 << PAGE_SHIFT);

fn dirty(vm: &Vm<Ept4, Ram>, idle: &mut Idle) -> Vec<u64> {
    let harvest = vm.memory().harvest(idle, SlotId(0)).unwrap();
    let pages = harvest.iter().map(|page| page.gfn.0 - 16).collect();
    harvest.commit();
    pages
}

#[test]
fn bytes_of_any_place_and_length_are_those_of_a_plain_copy_and_mark_their_pages_alone() {
    let (mut idle, mut lot) = (Idle::take().unwrap(), fastrand::Rng::with_seed(1));
    let vm = vm(&mut idle, Ram::new(70));
    let mut copy = vec![0_u8; (PAGES * PAGE_SIZE) as usize];
    for _ in 0..2000 {
        let at = lot.usize(..copy.len());
        let most = if lot.bool() { 20 } else { 9000 };
        let len = lot.usize(..=most.min(copy.len() - at));
        let gpa = Gpa(FIRST.0 + at as u64);
        if lot.bool() {
            let bytes: Vec<u8> = (0..len).map(|_| lot.u8(..)).collect();
            vm.memory().write_bytes(&mut idle, gpa, &bytes).unwrap();
            copy[at..at + len].copy_from_slice(&bytes);
            let pages: BTreeSet<u64> = (at..at + len).map(|byte| byte as u64 >> PAGE_SHIFT).collect();
            assert_eq!(dirty(&vm, &mut idle), Vec::from_iter(pages), "{at} {len}");
        } else {
            let mut bytes = vec![0; len];
            vm.memory().read_bytes(&mut idle, gpa, &mut bytes).unwrap();
            assert_eq!(bytes, copy[at..at + len], "{at} {len}");
            assert_eq!(dirty(&vm, &mut idle), [0; 0]);
        }
    }
}

#[test]
fn an_access_that_ends_early_names_the_first_byte_that_is_missing() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, Ram::new(1000));
    let slots = vm.memory();
    let end = Gpa(FIRST.0 + PAGES * PAGE_SIZE);
    let error = |gpa, why| Err(GuestMemoryError { gpa, why });
    let mut bytes = [1; 16];
    // Into the read-only slot, beyond it, and at the end of all addresses.
    let written = slots.write_bytes(&mut idle, Gpa(end.0 - 5), &bytes);
    assert_eq!(written, error(end, NoGuestMemory::ReadOnly));
    let rom_end = Gpa(end.0 + PAGE_SIZE);
    let read = slots.read_bytes(&mut idle, Gpa(rom_end.0 - 9), &mut bytes);
    assert_eq!(read, error(rom_end, NoGuestMemory::NoMemslot));
    assert_eq!(bytes, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "the five bytes that were written");
    let last = Gpa(u64::MAX);
    assert_eq!(slots.read_bytes(&mut idle, last, &mut bytes), error(last, NoGuestMemory::NoMemslot));
    assert_eq!(slots.write_bytes(&mut idle, last, &[]), Ok(()));

    // A host that gives nothing.
    let deaf = super::tests::vm(&mut idle, Ram::new(0));
    let read = deaf.memory().read_bytes(&mut idle, FIRST, &mut bytes);
    assert_eq!(read, error(FIRST, NoGuestMemory::NotOffered));
    let written = deaf.memory().write_bytes(&mut idle, FIRST, &bytes);
    assert_eq!(written, error(FIRST, NoGuestMemory::NotOffered));
    assert_eq!(dirty(&deaf, &mut idle), [0; 0]);

    // Private memory.
    let private = Slot::new(SlotId(2), Gfn(64), 2, BASE);
    slots.commit(&mut idle, |tx| tx.create_with_private(private, PrivateMemory(0).at(0))).unwrap();
    slots.set_private(&mut idle, Span::sized(Gfn(65), 1), true).unwrap();
    let read = slots.read_bytes(&mut idle, Gpa(65 * PAGE_SIZE - 4), &mut bytes);
    assert_eq!(read, error(Gpa(65 * PAGE_SIZE), NoGuestMemory::Private));
    for why in [
        NoGuestMemory::NoMemslot,
        NoGuestMemory::ReadOnly,
        NoGuestMemory::Private,
        NoGuestMemory::NotOffered,
        NoGuestMemory::Pending(Token(1)),
        NoGuestMemory::Host(HostError::Io),
    ] {
        let text = format!("{}", GuestMemoryError { gpa: FIRST, why });
        assert!(text.starts_with("guest memory at 0x10000: ") && !text.contains('\n'), "{text}");
    }
}

/// Notes what it is told.
#[derive(Default)]
struct Notes(Mutex<Vec<(bool, Gpa, usize)>>);

impl WriteListener for Notes {
    fn before(&self, _: &mut Idle, store: &TrackedStore<'_>) {
        self.0.lock().unwrap().push((false, store.gpa, store.bytes.len()));
    }

    fn after(&self, _: &mut Idle, store: &TrackedStore<'_>) {
        self.0.lock().unwrap().push((true, store.gpa, store.bytes.len()));
    }
}

#[test]
fn listeners_are_told_of_the_part_in_their_frame() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, Ram::new(1000));
    let notes = Arc::new(Notes::default());
    // The second frame, and the read-only one.
    let tracked = [Gfn(17), Gfn(16 + PAGES)];
    let _tracking =
        tracked.map(|gfn| vm.memory().track_writes(&mut idle, Span::sized(gfn, 1), notes.clone()).unwrap());
    let (second, third) = (Gpa(FIRST.0 + PAGE_SIZE), Gpa(FIRST.0 + 2 * PAGE_SIZE));
    vm.memory().write_bytes(&mut idle, Gpa(second.0 - 3), &[1; 8]).unwrap();
    vm.memory().write_bytes(&mut idle, third, &[1; 8]).unwrap();
    vm.memory().write_bytes(&mut idle, Gpa(FIRST.0 + PAGES * PAGE_SIZE), &[1; 8]).unwrap_err();
    assert_eq!(*notes.0.lock().unwrap(), [(false, second, 5), (true, second, 5)]);
}

#[test]
fn a_panic_of_the_host_marks_the_words_before_it() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, Ram::new(1000));
    for (bad, marked) in [(1, &[0][..]), (0, &[])] {
        vm.host().bad.store(bad, SeqCst);
        let write = AssertUnwindSafe(|| vm.memory().write_bytes(&mut idle, FIRST, &[7; 16]));
        assert!(catch_unwind(write).is_err());
        assert_eq!(dirty(&vm, &mut idle), marked);
    }
    vm.host().bad.store(u64::MAX, SeqCst);
    assert_eq!(vm.memory().write_bytes(&mut idle, FIRST, &[8; 16]), Ok(()));
}

#[test]
fn stores_to_the_bytes_of_one_word_keep_each_other() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, Ram::new(i64::MAX));
    vm.memory().read_bytes(&mut idle, FIRST, &mut [0]).unwrap();
    drop(idle);
    thread::scope(|scope| {
        for thread in 0..2 {
            let vm = &vm;
            scope.spawn(move || {
                let (mut idle, at) = (Idle::take().unwrap(), Gpa(FIRST.0 + 3 * thread));
                for value in 0..2000_u16 {
                    vm.memory().write_bytes(&mut idle, at, &value.to_le_bytes()).unwrap();
                    let mut bytes = [0; 2];
                    vm.memory().read_bytes(&mut idle, at, &mut bytes).unwrap();
                    assert_eq!(u16::from_le_bytes(bytes), value);
                }
            });
        }
    });
}
