//! Tests of swap without address spaces: a load returns what was stored, or an error; copies without references
//! are freed.

use super::copy_table::Place;
use super::device::PAGE;
use super::*;
use crate::held::Held;
use proptest::prelude::*;
use slat::{Level, PAGE_SIZE};
use std::collections::BTreeMap;
use std::io;

/// `ROOM` blocks in memory, with a switch that makes them fail: by an error, and every second one by a panic.
#[derive(Debug, Default)]
struct Blocks(Mutex<(Vec<u8>, bool)>);

const ROOM: usize = 12;

impl SwapDevice for Arc<Blocks> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut blocks = self.0.lock();
        if blocks.1 {
            return Err(failed(offset));
        }
        if offset as usize >= ROOM * PAGE {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        blocks.0.resize(ROOM * PAGE, 0);
        blocks.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let blocks = self.0.lock();
        if blocks.1 {
            return Err(failed(offset));
        }
        bytes.copy_from_slice(&blocks.0[offset as usize..][..bytes.len()]);
        Ok(bytes.len())
    }
}

fn failed(offset: u64) -> io::Error {
    if offset / PAGE_SIZE % 2 == 1 {
        std::panic::resume_unwind(Box::new("the device"));
    }
    io::Error::from_raw_os_error(libc::EIO)
}

fn arena() -> Arc<Arena> {
    Arena::builder().limit(4 << 20).poison(0xdd).build().unwrap()
}

/// A page with this many eighths that do not compress.
fn page(arena: &Arena, seed: u64, noise: usize) -> Held<'_> {
    let page = arena.zeroed(Level::K4).unwrap();
    fastrand::Rng::with_seed(seed).fill(&mut bytes_of(arena, page.pfn())[..PAGE / 8 * noise]);
    page
}

#[expect(clippy::mut_from_ref, reason = "frames are reached through the arena that they belong to")]
fn bytes_of(arena: &Arena, pfn: Pfn) -> &mut Bytes {
    // SAFETY: a frame that a single-threaded test holds.
    unsafe { &mut *arena.frame(pfn).cast() }
}

fn store<'a>(swap: &'a Swap, page: &Held<'_>) -> Result<HeldCopy<'a>, SwapError> {
    swap.store(&[page.pfn()], &Arc::default()).wait().pop().unwrap()
}

fn load(swap: &Swap, arena: &Arena, copy: &HeldCopy<'_>) -> Result<Bytes, SwapError> {
    let into = arena.page(Level::K4).unwrap();
    swap.load(copy, into.pfn()).map(|()| *bytes_of(arena, into.pfn()))
}

#[test]
fn a_bit_flipped_in_memory_is_found() {
    let arena = arena();
    let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
    let one = page(&arena, 1, 4);
    let copy = store(&swap, &one).unwrap();
    let (Place::Memory(slot), _) = swap.table.lock().find(copy.entry()) else {
        panic!("the page compresses")
    };
    let extent = swap.table.lock().pool.extent(slot);
    let mut buffer = [0; pool::LARGEST];
    let good = extent.read(&arena, &mut buffer).to_vec();
    for at in (0..good.len()).step_by(97) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        extent.write(&arena, &bad);
        assert_eq!(load(&swap, &arena, &copy), Err(SwapError::Corrupt), "byte {at}");
    }
    extent.write(&arena, &good);
    assert_eq!(load(&swap, &arena, &copy).as_ref(), Ok(&*bytes_of(&arena, one.pfn())));
}

#[test]
fn a_copy_lives_as_long_as_an_entry_refers_to_it() {
    let arena = arena();
    let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
    let (some, zeroes) = (page(&arena, 1, 1), page(&arena, 1, 0));
    let [entry, zero] = [&some, &zeroes].map(|page| store(&swap, page).unwrap().keep());
    assert_eq!((zero, swap.stats().zero), (SwapEntry::ZERO, 1));
    let second = swap.hold(entry);
    swap.put(entry);
    assert_eq!((swap.stats().references, swap.pool_bytes() > 0), (2, true));
    assert!(load(&swap, &arena, &second).is_ok());
    drop(second);
    assert_eq!((swap.stats().references, swap.pool_bytes()), (1, 0));
    assert_eq!(store(&swap, &some).unwrap().entry(), entry, "the number is reused");
    assert_eq!(load(&swap, &arena, &swap.hold(zero)), Ok([0; PAGE]));
    swap.put(zero);
    assert_eq!(swap.stats().references, 0);
}

#[test]
fn a_copy_that_a_thread_reads_stays_where_it_is() {
    let arena = arena();
    let swap =
        Swap::builder().memory(1 << 20).device(Arc::<Blocks>::default(), 1 << 20).build(&arena).unwrap();
    let [read, other] = [1, 2].map(|seed| store(&swap, &page(&arena, seed, 4)).unwrap());
    let place = || swap.table.lock().find(read.entry()).0;
    let (before, _) = swap.table.lock().find_to_read(read.entry());
    assert_eq!((swap.write_back(8), place() == before), (1, true));
    swap.table.lock().loaded(read.entry(), true, false);
    assert_eq!((swap.write_back(8), place() == before), (1, false));
    for (seed, copy) in [(1, &read), (2, &other)] {
        assert_eq!(load(&swap, &arena, copy).as_ref(), Ok(&*bytes_of(&arena, page(&arena, seed, 4).pfn())));
    }
    assert_eq!((swap.pool_bytes(), swap.stats().file_bytes), (0, 2 * PAGE_SIZE));
}

#[test]
fn a_place_that_does_not_fit_is_refused_with_its_reason() {
    let arena = arena();
    let memory = Swap::builder().memory(2 * PAGE_SIZE).build(&arena).unwrap();
    let noise = page(&arena, 1, 8);
    assert_eq!(store(&memory, &noise).map(drop), Err(SwapError::Incompressible));
    assert!(memory.has_room(), "other pages fit");
    let some = page(&arena, 2, 3);
    let held: Vec<_> = std::iter::from_fn(|| store(&memory, &some).ok()).collect();
    assert_eq!((held.len(), store(&memory, &some).map(drop)), (5, Err(SwapError::Full)));
    assert!(!memory.has_room());
    drop(held);
    assert!(memory.has_room());

    let hoard: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
    assert_eq!(
        store(&memory, &some).map(drop),
        Err(SwapError::NoFrame),
        "the arena has no frame for the pool"
    );
    assert!(memory.has_room(), "the pool has room once the arena has a frame");
    drop(hoard);
    assert!(store(&memory, &some).is_ok());
    assert_eq!((memory.stats().refused, memory.stats().store_errors), (4, 0));
}

#[derive(Clone, Debug)]
enum Step {
    /// A page with this seed and noise.
    Store(u64, usize),
    /// Adds or drops a reference to the existing copy with this number.
    Hold(usize),
    Put(usize),
    Load(usize),
    /// The device fails, or works, from here on.
    Fail(bool),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<u64>(), 0..=8usize).prop_map(|(seed, noise)| Step::Store(seed, noise)),
        2 => any::<usize>().prop_map(Step::Hold),
        5 => any::<usize>().prop_map(Step::Put),
        4 => any::<usize>().prop_map(Step::Load),
        1 => any::<bool>().prop_map(Step::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// With little room in memory and on a device that sometimes fails.
    #[test]
    fn swap_is_a_map(steps in prop::collection::vec(steps(), 1..150)) {
        let arena = arena();
        let blocks = Arc::<Blocks>::default();
        let builder = Swap::builder().memory(8 * PAGE_SIZE).device(blocks.clone(), 1 << 30);
        let swap = builder.build(&arena).unwrap();
        // References and contents of each copy.
        let mut model: BTreeMap<SwapEntry, (u64, Bytes)> = BTreeMap::new();
        let pick = |model: &BTreeMap<SwapEntry, (u64, Bytes)>, pick: usize| {
            model.keys().nth(pick % model.len().max(1)).copied()
        };
        for step in steps {
            match step {
                Step::Store(seed, noise) => {
                    let page = page(&arena, seed, noise);
                    match store(&swap, &page) {
                        Ok(copy) => {
                            let bytes = *bytes_of(&arena, page.pfn());
                            let found = model.entry(copy.keep()).or_insert((0, bytes));
                            prop_assert!(found.0 == 0 || noise == 0, "only zero pages share a copy");
                            found.0 += 1;
                        }
                        Err(error) => {
                            let fails = blocks.0.lock().1;
                            prop_assert!(matches!(error, SwapError::Full) || fails, "{error:?}");
                            let full = swap.stats().file_bytes == (ROOM * PAGE) as u64;
                            prop_assert!(fails || full, "a store failed though there was room");
                        }
                    }
                }
                Step::Hold(at) => {
                    let Some(entry) = pick(&model, at) else { continue };
                    swap.hold(entry).keep();
                    model.get_mut(&entry).unwrap().0 += 1;
                }
                Step::Put(at) => {
                    let Some(entry) = pick(&model, at) else { continue };
                    swap.put(entry);
                    let references = &mut model.get_mut(&entry).unwrap().0;
                    *references -= 1;
                    if *references == 0 {
                        model.remove(&entry);
                    }
                }
                Step::Load(at) => {
                    let Some(entry) = pick(&model, at) else { continue };
                    match load(&swap, &arena, &swap.hold(entry)) {
                        Ok(bytes) => prop_assert_eq!(&bytes, &model[&entry].1),
                        Err(error) => {
                            prop_assert_eq!(error, SwapError::Io { errno: libc::EIO });
                            prop_assert!(blocks.0.lock().1);
                        }
                    }
                }
                Step::Fail(fails) => blocks.0.lock().1 = fails,
            }
            let stats = swap.stats();
            prop_assert_eq!(stats.references, model.values().map(|(references, _)| references).sum::<u64>());
            prop_assert_eq!((stats.memory_bytes, arena.stats().in_use), (swap.pool_bytes(), swap.pool_bytes() / PAGE_SIZE));
            prop_assert!(stats.memory_bytes <= 8 * PAGE_SIZE && stats.file_bytes <= (ROOM * PAGE) as u64);
        }
        blocks.0.lock().1 = false;
        for (&entry, (references, bytes)) in &model {
            prop_assert_eq!(&load(&swap, &arena, &swap.hold(entry)).unwrap(), bytes);
            (0..*references).for_each(|_| swap.put(entry));
        }
        let stats = swap.stats();
        prop_assert_eq!((stats.references, stats.memory_bytes, stats.file_bytes), (0, 0, 0));
        prop_assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
    }
}
