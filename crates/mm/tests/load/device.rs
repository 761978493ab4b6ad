//! A device on the pages that guests use. It reads and writes its lines through the address space and through
//! pins, as the host sees them.

use crate::oracle::Lane;
use crate::random::Random;
use crate::stage::{PAGES, Stage, hva};
use slat::{Idle, PAGE_SIZE, Span};
use std::thread;

/// Runs until the world is over. Returns its lane.
pub fn run(stage: &Stage, number: u64) -> Lane {
    let mut idle = Idle::take().expect("the device has its own thread");
    let mut random = Random::new(stage.seed ^ (number + 1) << 40);
    let mut lane = Lane::new(number, PAGES);
    while !stage.is_over() {
        let (page, space, ledger) = (stage.some_hot(&mut random), &stage.space, &stage.ledger);
        let at = hva(page) + lane.offset();
        let done = match random.below(4) {
            0 => lane.load(ledger, page, |line| space.read(&mut idle, at, line)).map(|judged| {
                judged.unwrap_or_else(|wrong| stage.wrong(|| format!("a device reads {wrong}")));
            }),
            _ if !lane.owns(ledger, page) => Ok(()),
            1 => lane.store(ledger, page, |line| {
                let pinned = space.pin(&mut idle, Span::sized(hva(page), PAGE_SIZE))?;
                let to = stage.arena.frame(pinned.frames()[0]).wrapping_add(at.offset() as usize);
                // SAFETY: the device's own line of a frame, which stays pinned until the device has written.
                unsafe { to.copy_from_nonoverlapping(line.as_ptr(), line.len()) };
                Ok(())
            }),
            _ => lane.store(ledger, page, |line| space.write(&mut idle, at, line)),
        };
        // Where the access failed, the page is unmapped or protected at the moment.
        if done.is_err() || random.one_in(8) {
            thread::yield_now();
        }
    }
    lane
}
