//! Migrations whose connections, senders and receivers end at every moment: whatever happens, a guest that runs at the
//! receiver has every byte.
//!
//! Everything is in memory and deterministic: a seed decides the guests' stores and what the network does. A receiver
//! runs on its own thread, and each side waits for the other's bytes.
//!
//! | file | contents |
//! |---|---|
//! | `network` | connections that are cut, late, replayed; receivers that are replaced |
//! | `stamped_guest` | a guest, its log, and the memory at the receiver |
//! | `world` | several guests and one address; the oracle |
//!
//! `SLAT_MIGRATIONS` sets the number of seeds, and `SLAT_MIGRATION` runs one.

mod network;
mod stamped_guest;
mod world;

use network::Plan;
use world::{Mistake, World};

/// Seeds of a quick run.
const SEEDS: u64 = 1500;

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// Runs worlds; returns in how many a guest has left among the faults, and the first that was wrong.
fn worlds(mistake: Mistake, most: u64) -> (u64, Option<String>) {
    let seeds = number("SLAT_MIGRATION").map_or(0..most, |seed| seed..seed + 1);
    let mut arrived = 0;
    for seed in seeds {
        match World::random(seed, mistake).run() {
            Ok(here) => arrived += u64::from(here),
            Err(wrong) => return (arrived, Some(format!("seed {seed}: {wrong}"))),
        }
    }
    (arrived, None)
}

#[test]
fn a_guest_that_arrives_has_every_byte_whatever_happens() {
    let most = number("SLAT_MIGRATIONS").unwrap_or(SEEDS);
    let (arrived, wrong) = worlds(Mistake::None, most);
    assert_eq!(wrong, None);
    assert!(number("SLAT_MIGRATION").is_some() || arrived > most / 2, "{arrived} of {most} arrived");
}

#[test]
fn negative_control_a_receiver_that_ignores_the_identity_is_found() {
    let (_, wrong) = worlds(Mistake::IgnoresIdentity, SEEDS);
    assert!(wrong.is_some_and(|wrong| wrong.contains("wrong pages")));
}

#[test]
fn negative_control_tickets_that_are_equal_are_found() {
    let (_, wrong) = worlds(Mistake::SameTickets, 4 * SEEDS);
    assert!(wrong.is_some());
}

/// A sender is copied after its first connection was cut. Each copy sends a part of a round, then one sends all. Returns how
/// many copies arrived, and the first that was wrong.
fn copies(mistake: Mistake) -> (u64, Option<String>) {
    let mut arrived = 0;
    for (seed, up) in (0..).zip((9000..world::WHOLE_ROUND).step_by(1500)) {
        let cut = |up| Plan { up: Some(up), ..Plan::WHOLE };
        let mut world = World::planned(seed, mistake, vec![cut(up)]);
        world.send(0).unwrap();
        if world.is_over() {
            continue;
        }
        world.copy();
        world.store(0);
        world.plan(cut(300 + 3 * 4120));
        world.send(0).unwrap();
        for _ in 0..2 {
            if let Err(wrong) = world.send(1) {
                return (arrived, Some(wrong));
            }
        }
        arrived += u64::from(world.is_over());
    }
    (arrived, None)
}

#[test]
fn a_copy_of_a_sender_begins_anew_after_the_other_has_sent() {
    let (arrived, wrong) = copies(Mistake::None);
    assert_eq!(wrong, None);
    assert!(arrived > 5, "{arrived}");
}

#[test]
fn negative_control_a_copy_that_is_not_told_from_its_sender_is_found() {
    let (_, wrong) = copies(Mistake::IgnoresTickets);
    assert!(wrong.is_some_and(|wrong| wrong.contains("wrong pages")));
}

#[test]
fn negative_control_a_log_that_begins_anew_with_what_it_has_is_found() {
    let (_, wrong) = worlds(Mistake::MarksNothing, SEEDS);
    assert!(wrong.is_some_and(|wrong| wrong.contains("wrong pages")));
}

/// The events at the receiver's address between a connection that was cut and the next one.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    Restart,
    OtherGuest,
    Both,
}

const BETWEEN: [Between; 4] = [Between::Nothing, Between::Restart, Between::OtherGuest, Between::Both];

/// Cuts the first connection after this many bytes in one direction; returns whether the cut was reached.
fn cut(plan: Plan, between: Between) -> bool {
    let mut world = World::planned(1, Mistake::None, vec![plan]);
    let calls = world.send(0);
    assert!(calls.is_ok(), "{plan:?} {between:?}: {calls:?}");
    let reached = !world.is_over();
    if matches!(between, Between::OtherGuest | Between::Both) && reached {
        // It is cut in its second round.
        world.plan(Plan { up: Some(world::WHOLE_ROUND + 4500), ..Plan::WHOLE });
        world.send(1).unwrap();
    }
    if matches!(between, Between::Restart | Between::Both) && reached {
        world.restart().unwrap();
    }
    for _ in 0..2 {
        let sent = world.send(0);
        assert!(sent.is_ok(), "{plan:?} {between:?}: {sent:?}");
    }
    assert!(world.is_over(), "{plan:?} {between:?}: it never arrives");
    reached
}

#[test]
fn a_connection_may_be_cut_at_each_byte_of_the_receivers() {
    for between in BETWEEN {
        let reached =
            (0..1000).take_while(|&down| cut(Plan { down: Some(down), ..Plan::WHOLE }, between)).count();
        assert!(reached >= 6 * 24, "{reached}");
    }
}

#[test]
fn a_connection_may_be_cut_at_each_frame_of_the_senders() {
    for silent in [false, true] {
        for between in BETWEEN {
            // In each frame of the handshake, and twice in each page. At night at each byte of the handshake.
            let step = |up| match (number("SLAT_MIGRATIONS").is_some(), up < 300) {
                (false, true) => 7,
                (false, false) => 1987,
                (true, true) => 1,
                (true, false) => 61,
            };
            let (mut up, mut reached) = (0, 0);
            while cut(Plan { up: Some(up), silent, ..Plan::WHOLE }, between) {
                reached += 1;
                up += step(up);
            }
            assert!(reached > 50, "{reached}");
        }
    }
}
