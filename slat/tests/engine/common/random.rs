//! Choices from a seed: the same seed, the same choices.

#[derive(Clone)]
pub struct Random(pub fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.usize(..from.len())]
    }
}
