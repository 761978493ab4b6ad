//! From figures to places: linear or logarithmic, and where ticks are.

/// An axis's range. Always finite, and never empty.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// From zero to a round figure above all of these.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let most = finite(values).fold(0.0, f64::max);
        let to = if most > 0.0 { most * 1.04 } else { 1.0 };
        Self { log: false, from: 0.0, to }
    }

    /// From a power of ten, or twice or five times one, to another; what is not above zero has no place on it.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let all: Vec<f64> = finite(values).filter(|value| *value > 0.0).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        if all.is_empty() {
            return Self { log: true, from: 1.0, to: 10.0 };
        }
        let (from, to) = (below(least * 0.999), above(most * 1.001));
        Self { log: true, from, to: if to > from { to } else { from * 10.0 } }
    }

    /// Exactly so far, logarithmic.
    pub fn log_between(from: f64, to: f64) -> Self {
        Self { log: true, from, to: if to > from { to } else { from * 10.0 } }
    }

    /// Where a figure is, from 0 to 1 on the axis; none where it has no place.
    pub fn at(self, value: f64) -> Option<f64> {
        let (value, from, to) = if self.log {
            (value.max(0.0).ln(), self.from.ln(), self.to.ln())
        } else {
            (value, self.from, self.to)
        };
        let at = (value - from) / (to - from);
        (at.is_finite() && (-1e-9..=1.0 + 1e-9).contains(&at)).then_some(at.clamp(0.0, 1.0))
    }

    /// As [`at`](Self::at), where what is below the range is at its beginning.
    pub fn clamped(self, value: f64) -> f64 {
        self.at(value).unwrap_or(if value >= self.to { 1.0 } else { 0.0 })
    }

    /// Round figures on it, about so many.
    pub fn ticks(self, about: usize) -> Vec<f64> {
        if !self.log {
            let step = above((self.to - self.from) / about as f64);
            let steps = ((self.to - self.from) / step).floor() as u32;
            return (0..=steps).map(|nth| self.from + f64::from(nth) * step).collect();
        }
        let decades = (self.to / self.from).log10();
        let digits: &[f64] = if decades <= 1.2 {
            &[1.0, 2.0, 3.0, 5.0, 7.0]
        } else if decades <= 2.6 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let every = if digits.len() == 1 { (decades / about as f64).ceil().max(1.0) as i32 } else { 1 };
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        (first..=last)
            .filter(|decade| decade.rem_euclid(every) == 0)
            .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)))
            .filter(|tick| self.at(*tick).is_some())
            .collect()
    }
}

fn finite(values: impl IntoIterator<Item = f64>) -> impl Iterator<Item = f64> {
    values.into_iter().filter(|value| value.is_finite())
}

/// The round figure at or above: 1, 2 or 5 times a power of ten.
fn above(value: f64) -> f64 {
    let decade = 10f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * decade)
        .find(|round| *round >= value)
        .unwrap_or(10.0 * decade)
}

/// The round figure at or below.
fn below(value: f64) -> f64 {
    let decade = 10f64.powi(value.log10().floor() as i32);
    [5.0, 2.0].into_iter().map(|digit| digit * decade).find(|round| *round <= value).unwrap_or(decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_scale_begins_at_zero() {
        let scale = Scale::linear([3.0, 100.0, f64::NAN]);
        assert_eq!((scale.at(0.0), scale.at(52.0), scale.at(104.0)), (Some(0.0), Some(0.5), Some(1.0)));
        assert_eq!((scale.at(105.0), scale.at(-1.0), scale.at(f64::NAN)), (None, None, None));
        assert_eq!(scale.ticks(5), [0.0, 50.0, 100.0]);
    }

    #[test]
    fn a_logarithmic_scale_ends_at_round_figures() {
        let scale = Scale::log([3.0, 700.0, 0.0]);
        assert_eq!((scale.at(2.0), scale.at(1000.0), scale.at(0.0)), (Some(0.0), Some(1.0), None));
        assert_eq!(scale.ticks(5), [10.0, 100.0, 1000.0]);
        assert_eq!(Scale::log([12.0, 45.0]).ticks(5), [10.0, 20.0, 30.0, 50.0]);
        assert_eq!(Scale::log([1e-3, 1e9]).ticks(4), [1.0, 1e4, 1e8]);
    }

    #[test]
    fn no_figures_or_one_are_a_range_all_the_same() {
        for scale in [Scale::log([]), Scale::log([5.0]), Scale::linear([]), Scale::linear([0.0])] {
            assert!(scale.to > scale.from && !scale.ticks(5).is_empty(), "{scale:?}");
        }
    }
}
