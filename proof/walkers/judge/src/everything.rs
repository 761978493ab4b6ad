//! All checks in one call.

use crate::machine_trait::Machine;
use crate::report::Verdict;
use crate::{judge, mutate, stale};
use alloc::vec;
use alloc::vec::Vec;
use slat::{Format, Idle};

/// The seed, from `SLAT_JUDGE_SEED` at build time; 1 by default.
pub const SEED: u64 = number(option_env!("SLAT_JUDGE_SEED"), 1);
/// Number of look-ups for each format, from `SLAT_JUDGE_LOOKUPS`; 12,000 by default.
pub const LOOKUPS: u64 = number(option_env!("SLAT_JUDGE_LOOKUPS"), 12_000);

/// Judges a format by each check that this machine supports.
pub fn everything<F: Format, M: Machine>(machine: &mut M, idle: &mut Idle) -> Vec<Verdict> {
    let mut verdicts = vec![judge::<F, M>(machine, idle, SEED, LOOKUPS), mutate::<F, M>(machine, idle)];
    if M::SHOWS_STALE {
        verdicts.push(stale::<F, M>(machine, idle, SEED));
    }
    verdicts
}

/// Parses a decimal number up to the first other character.
const fn number(text: Option<&str>, default: u64) -> u64 {
    let Some(text) = text else { return default };
    let (digits, mut number, mut at) = (text.as_bytes(), 0, 0);
    while at < digits.len() && digits[at].is_ascii_digit() {
        number = number * 10 + (digits[at] - b'0') as u64;
        at += 1;
    }
    number
}
