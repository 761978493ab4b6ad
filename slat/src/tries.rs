//! How much tests try, which `cargo xtask mutants` raises for a test that must find a mistake.

/// Returns `SLAT_TRIES`, a number of worlds, seeds or attempts, or `least` where it is unset.
pub(crate) fn tries(least: u64) -> u64 {
    std::env::var("SLAT_TRIES").map_or(least, |tries| tries.parse().expect("SLAT_TRIES is a number"))
}
