//! Settings of tests, and the checks that fail in them.

use crate::parts::point::Check;
use crate::parts::setting::{Column, Setting, Work};
use crate::world::Costs;

/// A quick run with two vCPUs.
pub fn setting(column: Column) -> Setting<'static> {
    Setting { costs: &Costs::SERVER, vcpus: 2, column, quick: true, seed: 1, work: Work::default() }
}

/// Names of the checks that fail.
pub fn failing(checks: &[Check]) -> Vec<&'static str> {
    checks.iter().filter(|check| !check.ok).map(|check| check.name).collect()
}
