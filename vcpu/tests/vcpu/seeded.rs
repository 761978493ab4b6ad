//! Tests of mistakes in the engine ([`slat::seeded`]): vCPUs that share processors must find each. Only under
//! `--cfg seeded`: `cargo xtask verify --only worlds`.

use crate::shared;
use slat::seeded::{Tool, WRONG, each_fails_in_a_process};

const LOOKS: &str = "seeded::the_worlds_are_right_where_no_mistake_is_made";
/// Worlds to try with a mistake, one seed each. Then worlds without a mistake.
const TRIES: u64 = 100;
const RIGHT: u64 = 3;

#[test]
fn the_worlds_are_right_where_no_mistake_is_made() {
    let tries = if std::env::var("SLAT_SEEDED").is_ok() { TRIES } else { RIGHT };
    if let Some(world) = (1..=tries).find(|&seed| !shared::is_right(seed)) {
        panic!("{WRONG}{world}.");
    }
    println!("EXECUTIONS Shared processors {tries}");
}

#[test]
fn every_mistake_is_found() {
    each_fails_in_a_process(Tool::Shared, |_| LOOKS, true);
}
