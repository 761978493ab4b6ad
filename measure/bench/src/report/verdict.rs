//! One figure of a series' that a reader might quote, and whether ours is like it. The verdict follows from the two figures and a
//! tolerance with a reason. Figures whose sides have other names get no verdict.

use crate::report::figure_text::with;
use crate::report::page_model::{
    Cell, Mark, Sides, Source, Table, cell, figures, marked, number, sides, strong, words,
};
use crate::report::report_data::Sim;
use crate::sim::sim_report::Against;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub claim: String,
    pub published: Told,
    pub ours: Told,
    pub from: Source,
    pub tolerance: Tolerance,
    pub note: String,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Told {
    pub value: f64,
    pub unit: String,
    /// Of a ratio, and of a share by which one is less than the other.
    pub sides: Option<Sides>,
}

/// A figure that compares nothing.
pub fn told(value: f64, unit: &str) -> Told {
    Told { value, unit: unit.into(), sides: None }
}

/// A ratio of these sides.
pub fn ratio(value: f64, sides: &Sides) -> Told {
    Told { value, unit: "x".into(), sides: Some(sides.clone()) }
}

impl Told {
    /// As the page has it.
    pub fn text(&self) -> String {
        let sides = self.sides.as_ref().map_or(String::new(), |sides| format!(" ({sides})"));
        with(self.value, &self.unit) + &sides
    }
}

/// When ours counts as the published figure.
#[derive(Clone, Debug)]
pub enum Tolerance {
    /// It lies within this factor of it. Beyond it ours is better, where more is, or where less is.
    Factor(f64, crate::report::page_model::Better, &'static str),
    /// It is the same count.
    Same(&'static str),
    /// A simulation has judged, as its words say.
    Judged(bool, String),
    /// Never: why there is no verdict.
    None(&'static str),
    /// Never: it was fitted.
    Fitted,
}

/// The verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    Reproduced,
    Better,
    NotReproduced,
    Nothing,
}

impl Tolerance {
    /// How far, and why so far.
    pub fn text(&self) -> String {
        match self {
            Self::Factor(factor, _, why) => format!("within a factor of {factor}: {why}"),
            Self::Same(why) => format!("the same count: {why}"),
            Self::Judged(_, how) => how.clone(),
            Self::None(why) => (*why).to_owned(),
            Self::Fitted => "fitted: it proves nothing".into(),
        }
    }
}

impl Verdict {
    /// The verdict.
    pub fn says(&self) -> Says {
        if self.published.sides != self.ours.sides {
            return Says::Nothing;
        }
        let (ours, published) = (self.ours.value, self.published.value);
        match self.tolerance {
            Tolerance::None(_) | Tolerance::Fitted => Says::Nothing,
            Tolerance::Judged(true, _) => Says::Reproduced,
            Tolerance::Factor(factor, ..) if (1.0 / factor..=factor).contains(&(ours / published)) => {
                Says::Reproduced
            }
            Tolerance::Factor(_, better, _) if better.is_worse(published, ours) => Says::Better,
            Tolerance::Same(_) if ours.total_cmp(&published).is_eq() => Says::Reproduced,
            _ => Says::NotReproduced,
        }
    }

    /// As the page has it.
    fn cell(&self) -> Cell {
        match self.says() {
            Says::Reproduced => marked("reproduced", Mark::Good),
            Says::Better => marked("better than the series'", Mark::Good),
            Says::NotReproduced => marked("not reproduced", Mark::Bad),
            Says::Nothing => marked("no verdict", Mark::Open),
        }
    }
}

/// The verdicts of a simulation on a series' figures.
pub fn against(sim: &Sim) -> impl Iterator<Item = Verdict> {
    let of = |one: &Against, value| {
        let sides = one.sides.as_ref().map(|[over, under]| sides(over, under));
        Told { sides, ..told(value, &one.unit) }
    };
    sim.against_series.iter().map(move |one| Verdict {
        claim: one.what.clone(),
        published: of(one, one.published),
        ours: of(one, one.simulated),
        from: Source::Simulated,
        tolerance: if one.fitted {
            Tolerance::Fitted
        } else {
            Tolerance::Judged(one.reproduced, one.detail.clone())
        },
        note: if one.fitted { one.detail.clone() } else { String::new() },
    })
}

/// All of a series'.
pub fn table(verdicts: &[Verdict]) -> Table {
    Table::of(
        "Published figures, and whether they are reproduced",
        verdicts,
        [
            (words("claim"), &|one| cell(&one.claim)),
            (figures("", Source::Series), &|one| cell(one.published.text())),
            (number("ours"), &|one| strong(one.ours.text())),
            (words("where"), &|one| cell(one.from.name().replace(' ', "\u{a0}"))),
            (words("verdict"), &|one| one.cell()),
            (words("reproduced is"), &|one| cell(one.tolerance.text())),
            (words("note"), &|one| cell(&one.note)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page_model::Better;

    fn says(ours: Told, tolerance: Tolerance) -> Says {
        let published = ratio(0.93, &sides("locked", "lockless"));
        let (claim, note) = (String::new(), String::new());
        Verdict { claim, published, ours, from: Source::Here, tolerance, note }.says()
    }

    #[test]
    fn what_is_far_off_is_not_reproduced_and_other_sides_are_not_judged() {
        let within = |better| Tolerance::Factor(1.25, better, "two machines");
        let of = |value| ratio(value, &sides("locked", "lockless"));
        assert_eq!(says(of(0.90), within(Better::Less)), Says::Reproduced);
        assert_eq!(says(of(0.05), within(Better::Less)), Says::Better);
        assert_eq!(says(of(0.05), within(Better::More)), Says::NotReproduced);
        let other = ratio(0.93, &sides("locked", "by tables"));
        assert_eq!(says(other, within(Better::Less)), Says::Nothing);
        assert_eq!(says(of(0.93), Tolerance::Fitted), Says::Nothing);
    }
}
