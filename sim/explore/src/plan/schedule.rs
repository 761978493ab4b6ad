//! How long each CPU is held up before each access: that is the schedule.
//!
//! Time is virtual, so a CPU that is held up for long is one that others overtake. Nothing is held up for ever: a CPU
//! that waits for a slow one lets time pass, too.

use crate::random::Random;

/// How CPUs are held up. A step is an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each step for a random time, which is now and then a long one.
    Random {
        /// One in so many is long.
        long: u64,
    },
    /// Priorities: a step of the first takes a nanosecond, of the last a million; at so many moments, which are drawn, the one
    /// that runs becomes the last. As in PCT (Burckhardt, Kothari, Musuvathi, Nagarakatte, 2010).
    Priorities {
        /// The moments are below this step.
        within: u64,
        /// How many.
        changes: u32,
    },
    /// One CPU is so many times slower than the others; another one each time so many steps were made.
    Starve {
        /// Times.
        times: u64,
        /// Steps until another is.
        steps: u64,
    },
    /// CPUs are preempted where it matters most: right before a read-modify-write, or right after it, once in so many times,
    /// for up to so long.
    Decisions {
        /// Times.
        once_in: u64,
        /// Nanoseconds.
        away: u64,
    },
    /// CPUs are preempted: each runs undisturbed for about so many steps, and then not at all for about so long.
    Bursts {
        /// Steps.
        steps: u64,
        /// Nanoseconds.
        away: u64,
    },
}

impl Schedule {
    /// For how many nanoseconds at most a CPU is held up at a time.
    pub fn longest_hold(&self) -> u64 {
        match *self {
            Self::Decisions { away, .. } | Self::Bursts { away, .. } => away,
            _ => 0,
        }
    }
}

/// Picoseconds of a nanosecond.
const NS: u64 = 1000;

/// A schedule in progress.
#[derive(Debug)]
pub struct Pace {
    schedule: Schedule,
    random: Random,
    steps: u64,
    /// Of each CPU: picoseconds for a step; or steps left to it; or 1 after a read-modify-write.
    cpus: Vec<u64>,
    /// Steps at which priorities change, the next one last.
    changes: Vec<u64>,
    lowest: u64,
    starved: u32,
}

impl Pace {
    /// The schedule for so many CPUs.
    pub fn new(schedule: Schedule, seed: u64, cpus: u32) -> Self {
        let mut random = Random::new(seed, 2);
        let (mut speeds, mut changes) = (vec![0; cpus as usize], Vec::new());
        if let Schedule::Priorities { within, changes: many } = schedule {
            for speed in &mut speeds {
                *speed = 4_u64.pow(random.below(6) as u32) * NS + random.below(100);
            }
            changes = (0..many).map(|_| random.below(within)).collect();
            changes.sort_unstable_by_key(|&step| core::cmp::Reverse(step));
        }
        Self { schedule, random, steps: 0, cpus: speeds, changes, lowest: 4_u64.pow(6) * NS, starved: 0 }
    }

    /// For how long `cpu` is held up now, before a read-modify-write if so.
    pub fn delay(&mut self, cpu: u32, rmw: bool) -> u64 {
        self.steps += 1;
        match self.schedule {
            Schedule::Random { long } => {
                let short = self.random.within(1, 20 * NS);
                if self.random.once_in(long) { short + self.random.below(5000 * NS) } else { short }
            }
            Schedule::Priorities { .. } => {
                if self.changes.last().is_some_and(|&step| step <= self.steps) {
                    self.changes.pop();
                    self.cpus[cpu as usize] = self.lowest;
                    self.lowest += self.lowest / 4;
                }
                self.cpus[cpu as usize] + self.random.below(100)
            }
            Schedule::Starve { times, steps } => {
                if self.steps % steps == 1 {
                    self.starved = self.random.below(self.cpus.len() as u64) as u32;
                }
                let step = self.random.within(1, 10 * NS);
                if cpu == self.starved { step * times } else { step }
            }
            Schedule::Decisions { once_in, away } => {
                let after = std::mem::replace(&mut self.cpus[cpu as usize], rmw.into()) == 1;
                let step = self.random.within(1, 4 * NS);
                let held_up = (rmw || after) && self.random.once_in(once_in);
                if held_up { step + self.random.below(away * NS) } else { step }
            }
            Schedule::Bursts { steps, away } => {
                let left = &mut self.cpus[cpu as usize];
                if *left == 0 {
                    *left = self.random.below(2 * steps);
                    return self.random.below(2 * away * NS) + 1;
                }
                *left -= 1;
                self.random.within(1, 2 * NS)
            }
        }
    }
}
