//! Pages brought in again under exact LRU and under Belady's optimum.
//!
//! Both look at every access, which no real policy can afford; Belady's also knows the future, and evicts the page that
//! is used again last: no policy can do with fewer. A page's first access brings it in under any policy, and is not counted.
//!
//! **LRU** is a list with the pages linked by number: the one used last in front. **Belady** keeps a heap of the times
//! at which pages are used next. An access leaves the page's old time in the heap; it has passed by then, so the latest
//! time on top is always that of a page that is there. When the heap has grown, what has passed is dropped.

use std::collections::BinaryHeap;

/// Pages that exact LRU brings in again, with room for `room` pages (at least one), over `stream`, which has pages
/// `0..pages`.
pub fn lru(stream: &[u32], pages: usize, room: usize) -> u64 {
    let mut list = List::new(pages);
    let (mut there, mut seen) = (vec![false; pages], vec![false; pages]);
    let (mut count, mut again) = (0, 0);
    for &page in stream {
        let at = page as usize;
        if there[at] {
            list.remove(page);
        } else {
            again += u64::from(seen[at]);
            (there[at], seen[at]) = (true, true);
            if count == room {
                let last = list.last();
                list.remove(last);
                there[last as usize] = false;
            } else {
                count += 1;
            }
        }
        list.push_front(page);
    }
    again
}

/// A ring of pages around a head, which is the number after the last page's.
struct List {
    next: Vec<u32>,
    before: Vec<u32>,
}

impl List {
    fn new(pages: usize) -> Self {
        let head = pages as u32;
        Self { next: vec![head; pages + 1], before: vec![head; pages + 1] }
    }

    fn head(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn last(&self) -> u32 {
        self.before[self.head() as usize]
    }

    fn push_front(&mut self, page: u32) {
        let head = self.head();
        let first = self.next[head as usize];
        (self.next[page as usize], self.before[page as usize]) = (first, head);
        self.next[head as usize] = page;
        self.before[first as usize] = page;
    }

    fn remove(&mut self, page: u32) {
        let (next, before) = (self.next[page as usize], self.before[page as usize]);
        self.next[before as usize] = next;
        self.before[next as usize] = before;
    }
}

/// The same under Belady's optimum.
pub fn belady(stream: &[u32], pages: usize, room: usize) -> u64 {
    let next = next_uses(stream, pages);
    let (mut there, mut seen) = (vec![false; pages], vec![false; pages]);
    let mut times: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let (mut count, mut again) = (0, 0);
    for (now, (&page, &next)) in (0..).zip(stream.iter().zip(&next)) {
        let at = page as usize;
        if !there[at] {
            again += u64::from(seen[at]);
            (there[at], seen[at]) = (true, true);
            if count < room {
                count += 1;
            } else if let Some((_, last)) = times.pop() {
                there[last as usize] = false;
            }
        }
        times.push((next, page));
        if times.len() > 4 * room + 64 {
            times.retain(|&(time, _)| time > now);
        }
    }
    again
}

/// For each place in the stream, where its page comes next; the end of numbers where it does not.
fn next_uses(stream: &[u32], pages: usize) -> Vec<u32> {
    let (mut next, mut latest) = (vec![u32::MAX; stream.len()], vec![u32::MAX; pages]);
    for (now, &page) in stream.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut latest[page as usize], now as u32);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Any policy that names the page to evict, by brute force.
    fn brute_force(stream: &[u32], room: usize, evict: impl Fn(&[u32], usize) -> usize) -> u64 {
        let (mut there, mut seen, mut again) = (Vec::new(), HashSet::new(), 0);
        for (now, &page) in stream.iter().enumerate() {
            if there.contains(&page) {
                continue;
            }
            if there.len() == room {
                there.swap_remove(evict(&there, now));
            }
            there.push(page);
            again += u64::from(!seen.insert(page));
        }
        again
    }

    fn lru_slowly(stream: &[u32], room: usize) -> u64 {
        brute_force(stream, room, |there, now| {
            let last = |page: &u32| stream[..now].iter().rposition(|other| other == page);
            (0..there.len()).min_by_key(|&at| last(&there[at])).unwrap()
        })
    }

    fn belady_slowly(stream: &[u32], room: usize) -> u64 {
        brute_force(stream, room, |there, now| {
            let next = |page: &u32| stream[now..].iter().position(|other| other == page);
            (0..there.len()).max_by_key(|&at| next(&there[at]).unwrap_or(usize::MAX)).unwrap()
        })
    }

    /// The least of all orders of eviction.
    fn least(stream: &[u32], room: usize, there: &[u32], seen: u32) -> u64 {
        let Some((&page, rest)) = stream.split_first() else { return 0 };
        if there.contains(&page) {
            return least(rest, room, there, seen);
        }
        let again = u64::from(seen >> page & 1 == 1);
        let seen = seen | 1 << page;
        let with = |there: &[u32]| [there, &[page]].concat();
        again
            + if there.len() < room {
                least(rest, room, &with(there), seen)
            } else {
                let without = |out: usize| {
                    let mut there = there.to_vec();
                    there.swap_remove(out);
                    there
                };
                (0..room).map(|out| least(rest, room, &with(&without(out)), seen)).min().unwrap()
            }
    }

    /// Pages of a small set at random, some more often.
    fn stream(length: usize, pages: u32, seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..length).map(|_| random.u32(..) % random.u32(1..=pages)).collect()
    }

    #[test]
    fn both_count_what_brute_force_counts() {
        for seed in 1..200 {
            let stream = stream(300, 24, seed);
            for room in [1, 2, 5, 12, 23, 24, 40] {
                assert_eq!(lru(&stream, 24, room), lru_slowly(&stream, room), "LRU, {seed}, {room}");
                assert_eq!(belady(&stream, 24, room), belady_slowly(&stream, room), "Belady, {seed}, {room}");
            }
        }
    }

    #[test]
    fn no_policy_does_better_than_belady() {
        for seed in 1..40 {
            let stream = stream(14, 5, seed);
            for room in [1, 2, 3] {
                assert_eq!(belady(&stream, 5, room), least(&stream, room, &[], 0), "{stream:?}, {room}");
            }
        }
    }

    #[test]
    fn a_round_trip_is_the_worst_for_lru() {
        let round: Vec<u32> = (0..10).cycle().take(1000).collect();
        assert_eq!((lru(&round, 10, 9), lru(&round, 10, 10)), (990, 0));
        assert_eq!(belady(&round, 10, 9), 110);
    }
}
