//! What the scalable memslots series reports: microseconds before and after, by test and number of slots.

use super::scenario::Test;

/// (slots, before, after). Where the seed says "none" for the gain, both are as it prints them.
type Table = &'static [(u32, f64, f64)];

const MAP: Table = &[
    (10, 19200.0, 18600.0),
    (30, 19200.0, 19000.0),
    (50, 19200.0, 19000.0),
    (100, 19500.0, 19100.0),
    (509, 23200.0, 22300.0),
    (8194, 200_000.0, 54100.0),
];
const UNMAP: Table = &[
    (10, 31300.0, 31000.0),
    (30, 32500.0, 31000.0),
    (50, 33900.0, 31100.0),
    (100, 37400.0, 31200.0),
    (509, 72400.0, 31500.0),
    (32_764, 3_880_000.0, 35100.0),
];
const UNMAP_2M: Table = &[
    (10, 348.0, 351.0),
    (30, 373.0, 373.0),
    (50, 399.0, 395.0),
    (100, 470.0, 447.0),
    (509, 1550.0, 869.0),
    (32_764, 3_880_000.0, 34800.0),
];
const MOVE_ACTIVE: Table = &[
    (10, 110.0, 94.8),
    (30, 100.0, 86.5),
    (50, 99.9, 85.4),
    (100, 95.6, 80.0),
    (509, 101.0, 79.2),
    (32_764, 1420.0, 78.6),
];
const MOVE_INACTIVE: Table = &[
    (10, 111.0, 93.3),
    (30, 106.0, 91.8),
    (50, 99.2, 82.6),
    (100, 101.0, 84.0),
    (509, 108.0, 84.7),
    (32_764, 1480.0, 88.0),
];
const SETUP: Table = &[
    (10, 342.0, 283.0),
    (30, 989.0, 775.0),
    (50, 1410.0, 990.0),
    (100, 2600.0, 1740.0),
    (509, 13500.0, 8030.0),
    (32_764, 16_100_000.0, 590_000.0),
];

/// Before over after, where the seed has this very row. (Its largest number is called 32k there.)
pub fn ratio(test: Test, slots: u32) -> Option<f64> {
    let table = match test {
        Test::Map => MAP,
        Test::Unmap => UNMAP,
        Test::Unmap2m => UNMAP_2M,
        Test::MoveActive => MOVE_ACTIVE,
        Test::MoveInactive => MOVE_INACTIVE,
        Test::Setup => SETUP,
        Test::SetupAtOnce => &[],
    };
    table.iter().find(|row| row.0 == slots).map(|(_, before, after)| before / after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_the_seed_has_carry_its_ratio() {
        assert!(ratio(Test::Unmap, 32_764).is_some_and(|ratio| (110.0..111.0).contains(&ratio)));
        assert!(ratio(Test::Map, 8194).is_some_and(|ratio| (3.69..3.70).contains(&ratio)));
        assert_eq!(ratio(Test::Map, 32_764), None);
        assert_eq!(ratio(Test::Setup, 1_000_000), None);
    }
}
