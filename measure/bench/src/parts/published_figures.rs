//! The series' figures beside the simulated ones, whether they agree or not.

use crate::parts::point::Point;
use crate::parts::setting::Column;

/// A figure of the series' beside what the simulation says.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    /// Of what.
    pub what: String,
    /// The series'.
    pub published: f64,
    /// Ours.
    pub simulated: f64,
    /// Of both.
    pub unit: Unit,
    /// A parameter was chosen so that this one agrees: it proves nothing.
    pub fitted: bool,
    /// Whether the two agree as closely as `detail` says.
    pub reproduced: bool,
    /// The tolerance, or the reason why they do not agree.
    pub detail: String,
}

/// The unit of a figure. A ratio says what it divides by what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Of a figure that compares nothing.
    Plain(&'static str),
    /// Of a ratio: the name of what is divided, and of what it is divided by.
    Ratio(String, String),
}

/// A ratio of these sides.
pub fn ratio(over: impl Into<String>, under: impl Into<String>) -> Unit {
    Unit::Ratio(over.into(), under.into())
}

impl From<&'static str> for Unit {
    fn from(unit: &'static str) -> Self {
        assert!(!["x", "ratio", "times"].contains(&unit), "a ratio names its sides: use `ratio`");
        Self::Plain(unit)
    }
}

impl Unit {
    /// Its name, as reports print it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Plain(unit) => unit,
            Self::Ratio(..) => "ratio",
        }
    }

    /// The names of dividend and divisor.
    pub fn sides(&self) -> Option<[&str; 2]> {
        match self {
            Self::Plain(_) => None,
            Self::Ratio(over, under) => Some([over, under]),
        }
    }
}

impl Against {
    /// A figure that agrees if it differs by this part at most.
    pub fn within(part: f64, what: &str, (published, simulated): (f64, f64), unit: impl Into<Unit>) -> Self {
        Self {
            what: what.to_owned(),
            published,
            simulated,
            unit: unit.into(),
            fitted: false,
            reproduced: (simulated - published).abs() <= part * published,
            detail: format!("to {:.0}%", 100.0 * part),
        }
    }

    /// A figure that does not agree, and the reason.
    pub fn not(what: &str, (published, simulated): (f64, f64), unit: impl Into<Unit>, detail: &str) -> Self {
        let (what, unit, detail) = (what.to_owned(), unit.into(), detail.to_owned());
        Self { what, published, simulated, unit, fitted: false, reproduced: false, detail }
    }

    /// The same, where it agrees after all.
    #[must_use]
    pub fn unless(self, reproduced: bool) -> Self {
        Self { reproduced, ..self }
    }

    /// The same, fitted.
    #[must_use]
    pub fn fitted(self) -> Self {
        Self { fitted: true, ..self }
    }

    /// The same, with more to be said.
    #[must_use]
    pub fn saying(self, detail: &str) -> Self {
        Self { detail: format!("{}: {detail}", self.detail), ..self }
    }
}

/// The figure `name` of the point of so many vCPUs under `column`, if there is one.
pub fn figure(points: &[Point], vcpus: u32, column: Column, name: &str) -> Option<f64> {
    let point = points.iter().find(|point| (point.vcpus, point.column) == (vcpus, column))?;
    point.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
}
