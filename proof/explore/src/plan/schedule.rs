//! The schedule: the delay of each CPU before each access.
//!
//! Time is virtual, so other CPUs overtake a CPU with a long delay. No delay is infinite: a CPU that waits for a slow
//! one also lets time pass.

use crate::random::Random;
use slat_machine::explore::{Access, Act};

/// The kinds of schedules. A step is an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// A random delay per step, sometimes a long one.
    Random {
        /// One in this many is long.
        long: u64,
    },
    /// Priorities: a step of the first CPU takes a nanosecond, a step of the last one a million. At random steps the
    /// running CPU becomes the last one, as in PCT (Burckhardt, Kothari, Musuvathi, Nagarakatte, 2010).
    Priorities {
        /// The change points are below this step.
        within: u64,
        /// Number of change points.
        changes: u32,
    },
    /// One CPU is slower than the others by this factor; after this many steps another CPU is.
    Starve {
        /// The factor.
        times: u64,
        /// Steps until the next CPU becomes slow.
        steps: u64,
    },
    /// CPUs are preempted right before or right after a read-modify-write, once in this many times, for up to this
    /// long.
    Decisions {
        /// Once in this many.
        once_in: u64,
        /// Nanoseconds.
        away: u64,
    },
    /// CPUs are preempted right before the accesses of some places in the source, once in two times, for up to this
    /// long. The schedule draws the places.
    Places {
        /// One place of so many.
        of: u64,
        /// Nanoseconds.
        away: u64,
    },
    /// CPUs are preempted: each runs for about this many steps and then pauses for about this long.
    Bursts {
        /// Steps.
        steps: u64,
        /// Nanoseconds.
        away: u64,
    },
}

impl Schedule {
    /// The maximum delay at a time, in nanoseconds.
    pub fn longest_hold(&self) -> u64 {
        match *self {
            Self::Decisions { away, .. } | Self::Places { away, .. } | Self::Bursts { away, .. } => away,
            _ => 0,
        }
    }
}

/// Picoseconds per nanosecond.
const NS: u64 = 1000;

/// A schedule in progress.
#[derive(Debug)]
pub struct Pace {
    schedule: Schedule,
    random: Random,
    steps: u64,
    /// Determines the places of [`Schedule::Places`].
    drawn: u64,
    /// Per CPU: picoseconds per step, or steps left, or 1 after a read-modify-write.
    cpus: Vec<u64>,
    /// The steps at which priorities change, the next one last.
    changes: Vec<u64>,
    lowest: u64,
    starved: u32,
}

impl Pace {
    /// The schedule of `cpus` CPUs.
    pub fn new(schedule: Schedule, seed: u64, cpus: u32) -> Self {
        let mut random = Random::new(seed, 2);
        let drawn = random.number();
        let (mut speeds, mut changes) = (vec![0; cpus as usize], Vec::new());
        if let Schedule::Priorities { within, changes: many } = schedule {
            for speed in &mut speeds {
                *speed = 4_u64.pow(random.below(6) as u32) * NS + random.below(100);
            }
            changes = (0..many).map(|_| random.below(within)).collect();
            changes.sort_unstable_by_key(|&step| core::cmp::Reverse(step));
        }
        Self {
            schedule,
            random,
            steps: 0,
            drawn,
            cpus: speeds,
            changes,
            lowest: 4_u64.pow(6) * NS,
            starved: 0,
        }
    }

    /// The delay of `act.cpu` before the access.
    pub fn delay(&mut self, act: Act) -> u64 {
        self.steps += 1;
        let (cpu, rmw) = (act.cpu, act.access == Access::Rmw);
        match self.schedule {
            Schedule::Places { of, away } => {
                let place = u64::from(act.site.line()) << 8 ^ u64::from(act.site.column());
                let drawn = Random::new(place ^ self.drawn, 4).once_in(of);
                let step = self.random.within(1, 2 * NS);
                if drawn && self.random.once_in(2) { step + self.random.below(away * NS) } else { step }
            }
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
