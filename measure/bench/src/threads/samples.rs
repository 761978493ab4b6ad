//! The samples of one figure, one for each round, and how sure a factor of two medians is.

/// The samples of one figure, one per round. Never empty.
#[derive(Clone, Debug)]
pub struct Series {
    samples: Vec<f64>,
    sorted: Vec<f64>,
}

impl Series {
    /// # Panics
    /// Without samples.
    pub fn new(samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a figure needs at least one round");
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        Self { samples, sorted }
    }

    /// One figure of each sample.
    ///
    /// # Panics
    /// Without samples.
    pub fn of<S>(samples: &[S], figure: impl Fn(&S) -> f64) -> Self {
        Self::new(samples.iter().map(figure).collect())
    }

    /// One figure of each sample; none where a sample lacks it, or there are no samples.
    pub fn known<S>(samples: &[S], figure: impl Fn(&S) -> Option<f64>) -> Option<Self> {
        let samples: Vec<f64> = samples.iter().map(figure).collect::<Option<_>>()?;
        (!samples.is_empty()).then(|| Self::new(samples))
    }

    /// In the order of the rounds.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }

    /// The middle sample; the mean of the two middle ones when their number is even.
    pub fn median(&self) -> f64 {
        let half = self.sorted.len() / 2;
        if self.sorted.len() % 2 == 1 {
            self.sorted[half]
        } else {
            f64::midpoint(self.sorted[half - 1], self.sorted[half])
        }
    }
}

/// How often [`factor_interval`] draws samples again.
const DRAWS: usize = 2000;

/// The middle 95 of 100 factors of medians, by a bootstrap that draws alike in each run.
pub fn factor_interval(old: &[f64], new: &[f64]) -> [f64; 2] {
    let mut random = fastrand::Rng::with_seed(1);
    let mut again = |samples: &[f64]| {
        Series::new(samples.iter().map(|_| samples[random.usize(..samples.len())]).collect()).median()
    };
    let mut factors: Vec<f64> = (0..DRAWS).map(|_| again(old) / again(new)).collect();
    factors.sort_by(f64::total_cmp);
    [factors[DRAWS / 40], factors[DRAWS - 1 - DRAWS / 40]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_its_middle_sample() {
        let odd = Series::new(vec![3.0, 1.0, 100.0]);
        assert_eq!(format!("{:?} of {:?}", odd.median(), odd.samples()), "3.0 of [3.0, 1.0, 100.0]");
        assert_eq!(Series::new(vec![4.0, 2.0]).median().to_string(), "3");
    }
}
