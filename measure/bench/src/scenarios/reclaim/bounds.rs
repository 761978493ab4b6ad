//! Pages brought in again under exact LRU and under Belady's optimum.
//!
//! Both look at every access, which no real policy can afford; Belady's also knows the future, and evicts the page that
//! is used again last: no policy can do with fewer. A page's first access brings it in under any policy, and is not counted.
//!
//! Both evict the page with the greatest key, which an access changes: under LRU the age of its last use, under Belady the
//! time of its next. A heap keeps the keys. An access leaves the page's old key in the heap, which is dropped when it
//! comes to the top, or with all other old ones when the heap has grown.

use crate::scenarios::threads_prelude::*;
use crate::threads::traces::Trace;
use slat_vcpu::guest::{Phases, PhasesSettings};
use slat_vcpu::trace::Access;
use std::collections::BinaryHeap;

/// Pages that exact LRU brings in again, with room for `room` pages (at least one), over `stream`, which has pages
/// `0..pages`.
pub fn lru(stream: &[u32], pages: usize, room: usize) -> u64 {
    brought_in_again(stream, pages, room, |now| u32::MAX - now as u32)
}

/// The same under Belady's optimum.
pub fn belady(stream: &[u32], pages: usize, room: usize) -> u64 {
    // For each place in the stream, where its page comes next; the end of numbers where it does not.
    let (mut next, mut latest) = (vec![u32::MAX; stream.len()], vec![u32::MAX; pages]);
    for (now, &page) in stream.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut latest[page as usize], now as u32);
    }
    brought_in_again(stream, pages, room, |now| next[now])
}

/// The same where an access at a place of the stream gives the page that key.
fn brought_in_again(stream: &[u32], pages: usize, room: usize, key: impl Fn(usize) -> u32) -> u64 {
    // The keys of the pages that are there.
    let (mut keys, mut seen) = (vec![None; pages], vec![false; pages]);
    let mut heap: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let (mut count, mut again) = (0, 0);
    for (now, &page) in stream.iter().enumerate() {
        let key = key(now);
        if keys[page as usize].replace(key).is_none() {
            again += u64::from(std::mem::replace(&mut seen[page as usize], true));
            count += 1;
        }
        if count > room {
            // The page that is accessed stays: its new key is not in the heap yet.
            while let Some((key, last)) = heap.pop() {
                if keys[last as usize] == Some(key) {
                    keys[last as usize] = None;
                    count -= 1;
                    break;
                }
            }
        }
        heap.push((key, page));
        if heap.len() > 4 * room + 64 {
            heap.retain(|&(key, page)| keys[page as usize] == Some(key));
        }
    }
    again
}

// How cold evicted pages were: each eviction against the true order of last accesses.
//
// The pages that are there are counted by the time of their last access, in a Fenwick tree over the stream. An evicted
// page's **rank** is the part of them that was last accessed before it: 0 for the coldest, which is what exact LRU
// evicts, and on average a half for a policy that evicts any page.

/// An evicted page: the accesses made before, and its guest frame.
pub type Evicted = (u64, u32);

/// The mean rank of these evicted pages, in this order; `None` where there are none.
pub fn mean_rank(stream: &Stream, evicted: &[Evicted]) -> Option<f64> {
    let mut there = Tree(vec![0; stream.gfns.len() + 1]);
    let mut last = vec![None; stream.end];
    let (mut pages, mut next, mut sum, mut count) = (0u32, 0, 0.0, 0u32);
    for &(made, gfn) in evicted {
        while next < stream.gfns.len() && u64::from(stream.made[next]) < made {
            match last[stream.gfns[next] as usize].replace(next) {
                Some(before) => there.add(before, -1),
                None => pages += 1,
            }
            there.add(next, 1);
            next += 1;
        }
        // A page whose first access is still being made has no rank.
        if let Some(at) = last[gfn as usize].take() {
            there.add(at, -1);
            pages -= 1;
            sum += f64::from(there.sum(at)) / f64::from(pages.max(1));
            count += 1;
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}

/// Counts at places, and sums of all before a place, both in logarithmic time.
struct Tree(Vec<i32>);

impl Tree {
    fn add(&mut self, at: usize, count: i32) {
        let mut node = at + 1;
        while node < self.0.len() {
            self.0[node] += count;
            node += node & node.wrapping_neg();
        }
    }

    /// Of the places before `at`.
    fn sum(&self, at: usize) -> i32 {
        let (mut node, mut sum) = (at, 0);
        while node > 0 {
            sum += self.0[node];
            node &= node - 1;
        }
        sum
    }
}

// The accesses of the guests: the bundled traces and the program with phases; and the order of the accesses to each page.

/// Accesses that the guest is given at once; between two batches the bench looks at the memory in use.
const BATCH: usize = 4096;

/// The bundled traces and the program with phases; of each the first `most` accesses.
pub fn traces(most: usize) -> Result<Vec<Trace>> {
    let phases: Vec<Access> = Phases::new(PhasesSettings::default()).take(most).collect();
    let mut all = Trace::all(BATCH, most)?;
    all.push(Trace::new("phases", &phases, BATCH));
    Ok(all)
}

/// Which guest frame is accessed when. A frame that is accessed several times running appears once.
pub struct Stream {
    /// Guest frames, by number.
    pub gfns: Vec<u32>,
    /// For each: how many accesses came before the one that touches it.
    pub made: Vec<u32>,
    /// All frames have numbers below this.
    pub end: usize,
    /// How many different frames there are.
    pub distinct: usize,
}

impl Stream {
    /// Of this trace.
    pub fn new(trace: &Trace) -> Self {
        let end = (trace.bytes() / PAGE_SIZE) as usize;
        let mut stream = Self { gfns: Vec::new(), made: Vec::new(), end, distinct: 0 };
        let mut seen = vec![false; end];
        for (made, Gfn(gfn)) in trace.touched() {
            if stream.gfns.last() != Some(&(gfn as u32)) {
                stream.gfns.push(gfn as u32);
                stream.made.push(made);
                stream.distinct += usize::from(!std::mem::replace(&mut seen[gfn as usize], true));
            }
        }
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_vcpu::guest::Layout;
    use slat_vcpu::trace::Kind;
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
    fn a_round_trip_is_the_worst_for_lru() {
        let round: Vec<u32> = (0..10).cycle().take(1000).collect();
        assert_eq!((lru(&round, 10, 9), lru(&round, 10, 10)), (990, 0));
        assert_eq!(belady(&round, 10, 9), 110);
    }

    fn stream_of(gfns: &[u32]) -> Stream {
        let made = (0..gfns.len() as u32).collect();
        Stream { gfns: gfns.to_vec(), made, end: 16, distinct: 0 }
    }

    #[test]
    fn the_coldest_has_rank_0_and_the_hottest_1() {
        // By last access: 1, 2, 0, 3.
        let stream = stream_of(&[0, 1, 2, 0, 3, 3, 1]);
        assert_eq!(mean_rank(&stream, &[(6, 1)]), Some(0.0));
        assert_eq!(mean_rank(&stream, &[(6, 2)]), Some(1.0 / 3.0));
        assert_eq!(mean_rank(&stream, &[(6, 3)]), Some(1.0));
        assert_eq!(
            mean_rank(&stream, &[(6, 1), (6, 2), (6, 0), (6, 3)]),
            Some(0.0),
            "what went counts no more"
        );
        assert_eq!(mean_rank(&stream, &[(7, 1)]), Some(1.0), "it has come back");
        assert_eq!(mean_rank(&stream, &[(6, 9)]), None, "it was never there");
    }

    #[test]
    fn a_stream_has_every_page_of_every_access_in_order() {
        let access = |addr, size| Access { addr, size, kind: Kind::Load };
        let region = Layout::REGION;
        let accesses = vec![
            access(3 * region, 8),
            access(3 * region + 8, 8),
            access(3 * region + 4095, 2),
            access(8 * region - 4, 8),
            access(3 * region, 1),
        ];
        let trace = Trace::new("test", &accesses, accesses.len());
        assert_eq!(trace.regions, [3 * region, 7 * region, 8 * region]);
        let stream = Stream::new(&trace);
        assert_eq!(stream.gfns, [0, 1, 2 * 4096 - 1, 2 * 4096, 0]);
        assert_eq!(stream.made, [0, 2, 3, 3, 4]);
        assert_eq!((stream.end, stream.distinct), (3 * 4096, 4));
    }

    #[test]
    fn all_work_is_there_and_cut_where_it_is_told() {
        let traces = traces(1000).unwrap();
        let names: Vec<_> = traces.iter().map(|trace| trace.name).collect();
        assert_eq!(names, ["cc1", "sort", "boot", "phases"]);
        assert!(traces.iter().all(|trace| trace.accesses() == 1000 && Stream::new(trace).distinct > 10));
    }
}
