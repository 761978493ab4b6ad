//! Measurements in interleaved rounds.
//!
//! A laptop drifts: its clock, its neighbours and its caches are not the same a second later. So no figure
//! is taken alone. All entrants run inside one process, once a round, and each round starts with the next
//! of them ([`interleave`]); drift then falls on all alike, and a figure is the median of its rounds with
//! their spread beside it ([`Series`]). Threads leave together from a [`Line`].

use crate::parts::point::Tally;
use crate::threads::bench_report::Check;
pub use crate::world::Line;
use slat_cli::error::Error;
use std::time::Duration;

/// Runs every entrant once a round, and returns each entrant's samples in round order.
///
/// Round r starts with entrant r, so that no entrant always runs first or always follows the same neighbour.
/// One more round goes before the counted ones: it warms caches and grows the memory pools.
pub fn interleave<E, S>(rounds: usize, entrants: &[E], mut sample: impl FnMut(&E) -> S) -> Vec<Vec<S>> {
    for entrant in entrants {
        sample(entrant);
    }
    let mut samples: Vec<Vec<S>> = entrants.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for turn in 0..entrants.len() {
            let who = (round + turn) % entrants.len();
            samples[who].push(sample(&entrants[who]));
        }
    }
    samples
}

/// The entrants of one interleaved run, each with its samples in round order.
pub struct Lineup<E, S> {
    entrants: Vec<E>,
    samples: Vec<Vec<S>>,
}

impl<E, S> Lineup<E, S> {
    /// Runs every entrant once a round, as [`interleave`] does; the first failure is the result.
    pub fn run(
        runs: u32,
        entrants: impl IntoIterator<Item = E>,
        sample: impl FnMut(&E) -> Result<S, Error>,
    ) -> Result<Self, Error> {
        let entrants: Vec<E> = entrants.into_iter().collect();
        let samples = interleave(runs as usize, &entrants, sample).into_iter();
        let samples = samples.map(|samples| samples.into_iter().collect()).collect::<Result<_, _>>()?;
        Ok(Self { entrants, samples })
    }

    /// The samples of the entrant that `is` names; none where no such entrant ran.
    pub fn find(&self, is: impl Fn(&E) -> bool) -> &[S] {
        self.each().find(|(entrant, _)| is(entrant)).map_or(&[], |(_, samples)| samples)
    }

    /// The samples of this entrant; none where it did not run.
    pub fn of(&self, entrant: E) -> &[S]
    where
        E: PartialEq + Copy,
    {
        self.find(|other| *other == entrant)
    }

    /// Each entrant with its samples, in the order in which they were given.
    pub fn each(&self) -> impl Iterator<Item = (&E, &[S])> {
        self.entrants.iter().zip(self.samples.iter().map(Vec::as_slice))
    }

    /// The conditions of each entrant's samples. `who` names the entrant, `at` says where.
    pub fn checks<'s>(
        &'s self,
        at: &str,
        who: impl Fn(&E) -> String,
        tally: impl Fn(&'s S) -> &'s [Tally],
    ) -> Vec<Check> {
        let checks = |(entrant, samples): (&E, &'s [S])| {
            Check::tallied(&who(entrant), at, samples.iter().flat_map(&tally))
        };
        self.each().flat_map(checks).collect()
    }

    /// The samples of all entrants.
    pub fn all(&self) -> impl Iterator<Item = &S> + Clone {
        self.samples.iter().flatten()
    }
}

/// A time in microseconds.
pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Puts `items` in an order that looks random and is the same in every run.
pub fn shuffle<T>(items: &mut [T]) {
    fastrand::Rng::with_seed(1).shuffle(items);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn every_round_starts_with_the_next_entrant() {
        let runs = RefCell::new(Vec::new());
        let samples = interleave(3, &['a', 'b', 'c'], |who| {
            runs.borrow_mut().push(*who);
            runs.borrow().len()
        });
        assert_eq!(runs.into_inner().iter().collect::<String>(), "abc abc bca cab".replace(' ', ""));
        assert_eq!(samples, [[4, 9, 11], [5, 7, 12], [6, 8, 10]], "the first round is not counted");
    }

    #[test]
    fn no_thread_crosses_before_all_have_come() {
        let line = Line::new(3);
        let came = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                slat_cli::thread::start(scope, || {
                    for lap in 1..=100 {
                        came.fetch_add(1, Ordering::Relaxed);
                        line.cross();
                        assert!(came.load(Ordering::Relaxed) >= 3 * lap);
                    }
                });
            }
        });
    }
}
