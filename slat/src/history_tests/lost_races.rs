//! All rows again, with compare-and-swaps that are lost, as if another thread had written meanwhile: one after the
//! other, and many at once. Outcome and flush stay the same.

use super::rows;
use super::thorough::thorough;
use crate::inject::{self, Point};
use crate::table::formats::{Ept4NoAd, Npt4};
use crate::*;
use std::vec::Vec;

/// Runs every operation with the last of each `many` lost, or with number `nth` lost; asserts that nothing differs.
fn all_the_same<F: Format>(lose: impl Fn(&mut dyn FnMut()) -> u64) -> u64 {
    let mut idle = Idle::take().unwrap();
    let (mut lost, mut wrong) = (0, Vec::new());
    // Operations that may give up are tested elsewhere.
    for row in rows::<F>().into_iter().filter(|row| !row.may_give_up) {
        let so = |operation: &mut dyn FnMut()| lost += lose(operation);
        wrong.extend(row.run_so(&mut idle, &mut 0, so).err());
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    lost
}

#[test]
fn each_race_may_be_lost_once() {
    let mut executions = 0;
    // Each format loses each of the first six at night, and one of the first two otherwise.
    for nth in 0..thorough(6, 2) {
        let lose = |operation: &mut dyn FnMut()| {
            inject::nth(Point::Cas, nth, operation);
            1
        };
        if thorough(true, nth == 0) {
            executions += all_the_same::<Npt4>(lose);
        }
        if thorough(true, nth == 1) {
            executions += all_the_same::<Ept4NoAd>(lose);
        }
    }
    std::println!("EXECUTIONS Inject races {executions}");
}

#[test]
fn every_other_race_may_be_lost() {
    for many in [2, 5] {
        let lose = |operation: &mut dyn FnMut()| inject::every(Point::Cas, many, operation).1 / many;
        assert!(all_the_same::<Npt4>(lose) > 1000);
    }
}
