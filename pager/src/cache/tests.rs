//! A cache beside the previous design, and threads that ask for the same chunk.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn name(number: u32) -> Hash {
    Hash::of(&number.to_le_bytes())
}

#[test]
fn the_limit_holds_and_used_chunks_stay() {
    let cache = Cache::new(10 * 4096);
    let get = |number| cache.get(name(number), || Ok::<_, ()>(vec![number as u8; 4096])).unwrap();
    for number in 0..1000 {
        assert!(get(7).0.iter().all(|byte| *byte == 7));
        assert_eq!(get(100 + number).0[0], (100 + number) as u8);
        assert!(cache.stats().bytes <= 10 * 4096);
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.hits, stats.evicted), (1001, 999, 991));
    assert_eq!(stats.bytes, 10 * 4096);
}

/// Number of chunks that a test's cache holds.
const ROOM: usize = 64;

/// The previous design, a clock: its hand evicts chunks that were not asked for since it last passed.
#[derive(Default)]
struct Clock {
    ring: Vec<(u32, bool)>,
    hand: usize,
}

impl Clock {
    fn has(&mut self, number: u32) -> bool {
        if let Some(found) = self.ring.iter_mut().find(|there| there.0 == number) {
            found.1 = true;
            return true;
        }
        while self.ring.len() == ROOM {
            self.hand %= ROOM;
            if std::mem::take(&mut self.ring[self.hand].1) {
                self.hand += 1;
            } else {
                self.ring.swap_remove(self.hand);
            }
        }
        self.ring.push((number, false));
        false
    }
}

/// Number of hits in a cache with generations, and in a clock.
fn hits(numbers: impl Iterator<Item = u32>) -> (usize, usize) {
    let (cache, mut clock) = (Cache::new(ROOM * 4096), Clock::default());
    let (mut of_cache, mut of_clock) = (0, 0);
    for number in numbers {
        let (_, source) = cache.get(name(number), || Ok::<_, ()>(vec![0; 4096])).unwrap();
        of_cache += usize::from(source == Source::Cache);
        of_clock += usize::from(clock.has(number));
        assert!(cache.stats().bytes <= ROOM as u64 * 4096);
    }
    let state = cache.state.lock();
    assert!(state.gone.len() <= ROOM + 1 && state.went.len() <= ROOM + 1, "names of the gone have a limit");
    (of_cache, of_clock)
}

/// A guest reads all of its memory: each chunk once, by four faults.
fn scan(chunks: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    chunks.flat_map(|number| [number; 4])
}

#[test]
fn a_scan_does_not_evict_chunks_requested_twice() {
    // Apart in time, so that they do not count as faults on one chunk.
    let warm = || (0..32).chain(1000..1032).chain(0..32).chain(2000..2064);
    let before = hits(warm().chain(scan(10_000..20_000)));
    let after = hits(warm().chain(scan(10_000..20_000)).chain(0..32));
    assert_eq!((after.0 - before.0, after.1 - before.1), (32, 0));
}

#[test]
fn a_new_working_set_takes_the_place_of_an_old_one() {
    let old = || (0..10).flat_map(|_| 0..60);
    let new = |rounds| (0..rounds).flat_map(|_| 100..160);
    let (last, before) = (hits(old().chain(new(7))), hits(old().chain(new(6))));
    // The clock evicted the chunks that had come last.
    assert!(last.0 - before.0 == 60 && last.1 - before.1 < 10, "{last:?} {before:?}");
}

#[test]
fn of_a_working_set_that_is_larger_a_part_stays() {
    for chunks in [80, 128] {
        let found = hits((0..50).flat_map(|_| 0..chunks)).0;
        assert!(found > 50 * 40, "{found} of {chunks}");
    }
}

#[test]
fn generations_have_no_less_than_a_clock() {
    let mut seed = 1;
    let mut draw = move || {
        seed = crate::twin::mix(seed);
        seed >> 11
    };
    // The n-th of 500 chunks is asked for about 1/n as often as the first.
    let mut skewed: Vec<u32> =
        (0..40_000).map(|_| 500f64.powf(draw() as f64 / (1u64 << 53) as f64) as u32).collect();
    let zipf = hits(skewed.iter().copied());
    // Sometimes a guest reads all of its memory.
    for part in (0..8).rev() {
        skewed.splice(part * 5000..part * 5000, scan(10_000 + part as u32 * 500..10_400 + part as u32 * 500));
    }
    let scanned = hits(skewed.into_iter());
    // Clones that start one after the other: each works on 48 chunks, and then reads 200 of its own.
    let storm = hits((0..40).flat_map(|clone| (0..48).chain(scan(1000 + clone * 200..1200 + clone * 200))));
    for (what, (generations, clock)) in
        [("skewed", zipf), ("skewed beside scans", scanned), ("clones", storm)]
    {
        println!("{what}: {generations} hits, a clock {clock}");
        assert!(generations * 100 >= clock * 97, "{what}");
    }
}

#[test]
fn a_chunk_larger_than_the_cache_is_not_kept() {
    let cache = Cache::new(100);
    for _ in 0..2 {
        assert_eq!(cache.get(name(1), || Ok::<_, ()>(vec![1; 101])).unwrap().1, Source::Store);
    }
    assert_eq!(cache.stats().bytes, 0);
}

#[test]
fn a_chunk_is_read_once_for_all_waiting_threads() {
    let (cache, reads) = (Cache::new(1 << 20), AtomicUsize::new(0));
    let get = || {
        cache.get(name(1), || {
            reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(20));
            Ok::<_, ()>(vec![1; 4096])
        })
    };
    std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| get().unwrap())));
    assert_eq!(reads.into_inner(), 1);
}

#[test]
fn a_read_that_fails_is_tried_again() {
    let cache = Cache::new(1 << 20);
    assert!(cache.get(name(1), || Err("the store is down")).is_err());
    let panics = || cache.get::<()>(name(1), || panic!("on purpose"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(cache.get(name(1), || Ok::<_, ()>(vec![1])).unwrap().1, Source::Store);
}
