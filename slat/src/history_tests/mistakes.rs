//! Mistakes in the shipped code, and the row that finds each.

use super::rows;
use crate::seeded::{self, Bug, Tool};
use crate::table::formats::{Ept4NoAd, Npt4};
use crate::{Format, Idle};
use std::string::String;

/// Mistakes that other history tests find: in `hardware`, in `lost`, in `passes`, and in [`crate::huge`].
const ELSEWHERE: [Bug; 3] = [Bug::SplitByStore, Bug::LostSplitBelieved, Bug::RecoverUnfrozen];

/// Runs the rows up to the first that fails. Returns its message.
fn first_wrong<F: Format>(looks: &mut u64) -> Option<String> {
    let mut idle = Idle::take().unwrap();
    rows::<F>().into_iter().find_map(|row| row.run(&mut idle, looks).err())
}

#[test]
fn each_mistake_is_found() {
    let here = |bug: &&Bug| bug.tool() == Tool::History && !ELSEWHERE.contains(bug);
    for &bug in Bug::ALL.iter().filter(here) {
        let mut looks = 0;
        let wrong = seeded::with(bug, || {
            first_wrong::<Npt4>(&mut looks).or_else(|| first_wrong::<Ept4NoAd>(&mut looks))
        });
        let wrong = wrong.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        std::println!("{}: {wrong}", bug.name());
        seeded::found(bug, looks);
    }
}
