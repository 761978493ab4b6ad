//! How cold evicted pages were: each eviction against the true order of last accesses.
//!
//! The pages that are there are counted by the time of their last access, in a Fenwick tree over the stream. An evicted
//! page's **rank** is the part of them that was last accessed before it: 0 for the coldest, which is what exact LRU
//! evicts, and on average a half for a policy that evicts any page.

use super::access_stream::Stream;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(gfns: &[u32]) -> Stream {
        let made = (0..gfns.len() as u32).collect();
        Stream { gfns: gfns.to_vec(), made, end: 16, distinct: 0 }
    }

    #[test]
    fn the_coldest_has_rank_0_and_the_hottest_1() {
        // By last access: 1, 2, 0, 3.
        let stream = stream(&[0, 1, 2, 0, 3, 3, 1]);
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
    fn sums_are_sums() {
        let mut tree = Tree(vec![0; 101]);
        let mut plain = [0; 100];
        for step in 0..1000usize {
            let (at, count) = (step * 37 % 100, step as i32 % 7 - 3);
            tree.add(at, count);
            plain[at] += count;
            let before = step * 53 % 101;
            assert_eq!(tree.sum(before), plain[..before].iter().sum::<i32>());
        }
    }
}
