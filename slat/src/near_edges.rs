//! Test numbers near edges. Most mistakes about ranges show at an edge, and uniformly drawn numbers hardly ever lie at
//! one.

use core::ops::Range;
use proptest::prelude::*;

/// Any number of `range`, and more often numbers at or next to the edges of tables (of 2 MiB, 1 GiB, 512 GiB and so on,
/// in frames), of powers of two, and of the range itself.
pub(crate) fn near_edges(range: Range<u64>) -> impl Strategy<Value = u64> + Clone {
    let (first, last) = (range.start, range.end - 1);
    let within = move |(edge, beside): (u64, i64)| edge.saturating_add_signed(beside).clamp(first, last);
    let tables = (1..6_u32, 0..4_u64).prop_map(|(level, nth)| nth << (9 * level));
    let powers = (0..64_u32).prop_map(|bit| 1 << bit);
    let edge = prop_oneof![4 => tables, 1 => powers, 1 => Just(first), 1 => Just(last)];
    prop_oneof![range, (edge, -1..2_i64).prop_map(within)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    #[test]
    fn edges_are_drawn_and_nothing_out_of_range() {
        let (mut runner, numbers) = (TestRunner::deterministic(), near_edges(3..(1 << 20) + 5));
        let drawn: std::collections::BTreeSet<u64> =
            (0..4000).map(|_| numbers.new_tree(&mut runner).unwrap().current()).collect();
        for edge in [3, 63, 511, 512, 513, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 20) + 4] {
            assert!(drawn.contains(&edge), "{edge}");
        }
        assert!(drawn.iter().all(|number| (3..(1 << 20) + 5).contains(number)));
        assert!(drawn.len() > 1000, "and others");
    }
}
