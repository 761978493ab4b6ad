//! Two groups on one arena and one swap. The guests' memory has a limit that changes. A neighbour in the other
//! group has a limit below its needs.

use crate::random::Random;
use crate::stage::{Mistake, Stage};
use parking_lot::Mutex;
use slat::{Hva, Idle, PAGE_SIZE};
use slat_mm::{AddressSpace, Arena, Backing, Group, MmError, Place, Prot, Swap};
use std::sync::Arc;
use std::thread;

/// Limits of the guests' group in pages. They are below the guests' usage, with and without forks. Only the
/// tables of forks are added.
pub const LIMITS: [u64; 3] = [1856, 1728, 1600];
const TABLES: u64 = 64;
/// Pages of the neighbour, and its limit.
const PAGES: u64 = 192;
const LIMIT: u64 = 96;
/// The address of the neighbour's pages.
const BASE: Hva = Hva(0x7000_0000);

/// Both groups.
pub struct Groups {
    pub guests: Arc<Group>,
    pub neighbour: Arc<Group>,
    /// The guests' limit, if any, and the number of forks.
    limit: Mutex<(Option<u64>, u64)>,
}

impl Groups {
    pub fn new(arena: &Arc<Arena>, mistake: Mistake) -> Self {
        let limit = |pages: u64| mistake.runs_everything().then_some(pages);
        let group = |limit: Option<u64>| Group::new(arena, limit.map(|pages| pages * PAGE_SIZE)).unwrap();
        let (guests, neighbour) = (limit(LIMITS[0]), limit(LIMIT));
        Self { guests: group(guests), neighbour: group(neighbour), limit: Mutex::new((guests, 0)) }
    }

    /// Changes the guests' limit, if there is one.
    pub fn set_limit(&self, pages: u64) {
        self.change(|limit| limit.0 = limit.0.map(|_| pages));
    }

    pub fn has_forked(&self) {
        self.change(|limit| limit.1 += 1);
    }

    pub fn a_fork_has_gone(&self) {
        self.change(|limit| limit.1 -= 1);
    }

    fn change(&self, change: impl FnOnce(&mut (Option<u64>, u64))) {
        let mut limit = self.limit.lock();
        change(&mut limit);
        let (pages, forks) = *limit;
        self.guests.set_limit(pages.map(|pages| (pages + forks * TABLES) * PAGE_SIZE));
    }
}

/// The result of a change, or `None` where the group had no room. All that could be evicted is then shared or
/// in use.
pub fn with_room<T>(done: Result<T, MmError>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(MmError::OutOfFrames(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Runs the neighbour. It is alone in its address space, and knows every word.
pub fn run(stage: &Stage, swap: &Arc<Swap>) {
    let mut idle = Idle::take().expect("the neighbour has its own thread");
    let mut random = Random::new(stage.seed ^ 7 << 48);
    let space =
        AddressSpace::builder(&stage.arena).swap(swap).group(&stage.groups.neighbour).build().unwrap();
    space.mmap(Place::Fixed(BASE), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let mut words = vec![0u64; PAGES as usize];
    while !stage.is_over() {
        let page = random.below(PAGES);
        let (at, mut word) = (BASE + page * PAGE_SIZE + page * 8, [0; 8]);
        let expected = &mut words[page as usize];
        if random.one_in(2) {
            let next = random.0.u64(..);
            if with_room(space.write(&mut idle, at, &next.to_le_bytes())).is_some() {
                *expected = next;
            }
        } else if with_room(space.read(&mut idle, at, &mut word)).is_some()
            && u64::from_le_bytes(word) != *expected
        {
            stage.wrong(|| format!("the neighbour reads {word:x?} instead of {expected:x} at {at}"));
        }
        if random.one_in(8) {
            thread::yield_now();
        }
    }
}
