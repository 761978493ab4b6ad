//! What a text may say of figures, as a list of rules. The report's titles, cards and verdicts, the tables of [`crate::levers`] and
//! the lines of the README are [`Claim`]s; CI holds each against [`RULES`], and `slat report` shows an alarm for a claim that breaks one.

use crate::report::{Ranked, Sides, Table, of_time};
use std::fmt;

/// A text that a reader might quote, and what carries it.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// Where it stands.
    pub place: String,
    /// Its words.
    pub text: String,
    /// What its rows say: cells, heads and captions.
    pub rows: Vec<String>,
    /// Of each ratio in it, what is divided by what.
    pub sides: Vec<Sides>,
    /// Where slat is worse than what it is compared with, by its rows.
    pub lost: Vec<String>,
    /// Where it says whether something is reproduced.
    pub verdict: Option<Judged>,
}

/// A claim that says whether a published figure is reproduced.
#[derive(Clone, Debug)]
pub struct Judged {
    /// It has a verdict, for or against.
    pub decided: bool,
    /// How far two figures may be apart, and why.
    pub tolerance: String,
    /// A parameter was chosen so that ours agrees.
    pub fitted: bool,
}

/// One rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// For tests.
    pub name: &'static str,
    /// What it asks of a claim.
    pub asks: &'static str,
    /// What of the claim breaks it.
    breaks: fn(&Claim) -> Option<String>,
}

/// All of them.
pub const RULES: [Rule; 6] = [
    Rule {
        name: "figure-of-a-row",
        asks: "every figure is a figure of a row",
        breaks: |claim| {
            let of_rows: Vec<Figure> = claim.rows.iter().flat_map(|row| figures(row)).collect();
            let carried = |one: &Figure| of_rows.iter().any(|other| one.is_told_by(other));
            let wrong: Vec<String> = figures(&claim.text)
                .into_iter()
                .filter(|one| !carried(one))
                .map(|one| one.to_string())
                .collect();
            (!wrong.is_empty()).then(|| format!("no row has {}", wrong.join(", ")))
        },
    },
    Rule {
        name: "ratio-names-its-sides",
        asks: "every ratio names what is divided by what",
        breaks: |claim| {
            let ratios = figures(&claim.text).iter().filter(|one| one.unit == "×").count();
            let unnamed = |side: &&String| side.is_empty() || !claim.text.contains(side.as_str());
            match claim.sides.iter().flat_map(|one| [&one.before, &one.after]).find(unnamed) {
                Some(side) => Some(format!("it does not name `{side}`")),
                None if ratios > 0 && claim.sides.is_empty() => Some("a ratio of unknown sides".into()),
                None => None,
            }
        },
    },
    Rule {
        name: "same-sides",
        asks: "ratios that stand together are of the same sides, or there is no verdict on them",
        breaks: |claim| {
            let decided = claim.verdict.as_ref().is_none_or(|verdict| verdict.decided);
            let [first, rest @ ..] = claim.sides.as_slice() else { return None };
            let other = rest.iter().find(|other| *other != first).filter(|_| decided)?;
            Some(format!("`{first}` beside `{other}`"))
        },
    },
    Rule {
        name: "tolerance-and-reason",
        asks: "a verdict says how far two figures may be apart, and why so far",
        breaks: |claim| {
            let verdict = claim.verdict.as_ref()?;
            verdict.tolerance.trim().is_empty().then(|| "no tolerance".into())
        },
    },
    Rule {
        name: "loss-is-said",
        asks: "where slat loses, the title says so",
        breaks: |claim| {
            let said = ["slat loses", "No gain"].iter().any(|words| claim.text.contains(words));
            (!claim.lost.is_empty() && !said).then(|| format!("slat loses: {}", claim.lost.join("; ")))
        },
    },
    Rule {
        name: "fitted-is-no-verdict",
        asks: "what was fitted says so, and is not said to be reproduced",
        breaks: |claim| {
            let verdict = claim.verdict.as_ref().filter(|verdict| verdict.fitted)?;
            (verdict.decided || !claim.text.contains("fitted")).then(|| "fitted".into())
        },
    },
];

/// Each rule that a claim breaks, in words.
pub fn broken(claims: &[Claim]) -> Vec<String> {
    let of = |claim: &Claim| {
        let Claim { place, text, .. } = claim;
        let breaks = |rule: &Rule| {
            Some(format!("{place}: \"{text}\" breaks the rule that {}: {}", rule.asks, (rule.breaks)(claim)?))
        };
        RULES.iter().filter_map(breaks).collect::<Vec<_>>()
    };
    claims.iter().flat_map(of).collect()
}

/// All that a table says.
pub fn said(table: &Table) -> impl Iterator<Item = String> + '_ {
    let heads = table.columns.iter().map(|column| column.label.clone());
    let cells = table.rows.iter().flatten().map(|cell| cell.text.clone());
    std::iter::once(table.caption.clone()).chain(heads).chain(cells)
}

/// The rows of a table in which slat's figure is worse than another one.
pub fn lost(table: &Table, ranked: &Ranked) -> Vec<String> {
    let column = |name: &str| table.columns.iter().position(|column| column.label == name);
    let Some(slat) = column(&ranked.slat) else { return vec![format!("no column of {}", ranked.slat)] };
    let mut lost = Vec::new();
    for row in &table.rows {
        let value = |at: usize| figures(&row.get(at)?.text).first().map(Figure::value);
        for other in &ranked.others {
            if let Some((mine, theirs)) = value(slat).zip(column(other).and_then(value))
                && ranked.better.is_worse(mine, theirs)
            {
                let name = row.first().map_or("", |cell| &cell.text);
                lost.push(format!("{name}, against {other}"));
            }
        }
    }
    lost
}

/// The ratios of a text that are below 1: what is divided by slat's is less.
pub fn below_one(text: &str) -> Vec<String> {
    let below = |one: &Figure| one.unit == "×" && one.value() < 1.0;
    figures(text).iter().filter(|one| below(one)).map(ToString::to_string).collect()
}

/// A number in a text, with the unit behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Figure {
    number: String,
    unit: String,
}

/// Units of figures. A number with another word behind it is a count; it has none.
const UNITS: [&str; 8] = ["×", "%", "ns", "µs", "us", "ms", "s", "x"];
/// A number before one of these, or after one of those, says how something was measured. Its row need not repeat it.
const SETTINGS: [&str; 8] = ["vCPU", "CPU", "slot", "memslot", "KiB", "MiB", "GiB", "bytes"];
const QUANTILE: char = 'p';

/// Those of a text, without what stands between backquotes.
fn figures(text: &str) -> Vec<Figure> {
    let plain: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let chars: Vec<char> = plain.chars().collect();
    let (mut figures, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        if !chars[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let begin = at;
        let goes_on = |at: usize| {
            let inside =
                matches!(chars[at], ',' | '.') && chars.get(at + 1).is_some_and(char::is_ascii_digit);
            chars[at].is_ascii_digit() || inside
        };
        while at < chars.len() && goes_on(at) {
            at += 1;
        }
        let before = begin.checked_sub(1).map(|before| chars[before]);
        let minus = matches!(before, Some('−' | '-')) && (begin < 2 || !chars[begin - 2].is_alphanumeric());
        let behind: String =
            chars[at..].iter().skip_while(|c| **c == ' ' || **c == '\u{a0}').take(12).collect();
        let word: String = behind.chars().take_while(|c| c.is_alphabetic() || "×%".contains(*c)).collect();
        let named =
            before.is_some_and(|before| before.is_alphabetic() || before == '_') || before == Some(QUANTILE);
        if named || SETTINGS.iter().any(|setting| word.starts_with(setting)) {
            continue;
        }
        let digits: String = chars[begin..at].iter().filter(|c| **c != ',').collect();
        let number = if minus { format!("-{digits}") } else { digits };
        let unit = UNITS.iter().find(|unit| **unit == word).map_or(String::new(), |unit| (*unit).to_owned());
        figures.push(Figure { number, unit });
    }
    figures
}

impl Figure {
    /// A count is a row's whatever stands behind it.
    fn is_told_by(&self, row: &Self) -> bool {
        self.number == row.number && (self.unit.is_empty() || self.unit == row.unit)
    }

    /// In nanoseconds, if it is a time.
    fn value(&self) -> f64 {
        self.number.parse().unwrap_or(f64::NAN) * of_time(&self.unit).unwrap_or(1.0)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format!("{} {}", self.number, self.unit).trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Better, sides};

    /// A claim that breaks no rule.
    fn sound() -> Claim {
        Claim {
            place: "plot".into(),
            text: "locked against lockless: 5.88 × at 112 vCPUs, 13.5 s; slat loses at 1 vCPU (fitted)"
                .into(),
            rows: vec!["13.5 s".into(), "112".into(), "5.88 ×".into()],
            sides: vec![sides("locked", "lockless"); 2],
            lost: vec!["1".into()],
            verdict: Some(Judged {
                decided: true,
                tolerance: "a factor of 1.25: two machines".into(),
                fitted: false,
            }),
        }
    }

    /// The rules that a claim breaks.
    fn names(claim: &Claim) -> Vec<&'static str> {
        RULES.iter().filter(|rule| (rule.breaks)(claim).is_some()).map(|rule| rule.name).collect()
    }

    /// Negative controls: one change to a sound claim for each way to break a rule.
    #[test]
    fn each_rule_refuses_what_breaks_it() {
        type Break = fn(&mut Claim);
        let breaks: [(&str, Break); 9] = [
            ("figure-of-a-row", |claim| claim.text = claim.text.replace("5.88", "28.0")),
            ("figure-of-a-row", |claim| claim.rows[0] = "13.5 ms".into()),
            ("figure-of-a-row", |claim| claim.text += ", 1,234 flushes"),
            ("ratio-names-its-sides", |claim| claim.sides.clear()),
            ("ratio-names-its-sides", |claim| claim.text = claim.text.replace("lockless", "slat")),
            ("same-sides", |claim| claim.sides[1] = sides("locked", "112")),
            ("tolerance-and-reason", |claim| claim.verdict.as_mut().unwrap().tolerance.clear()),
            ("loss-is-said", |claim| claim.text = claim.text.replace("slat loses", "so")),
            ("fitted-is-no-verdict", |claim| claim.verdict.as_mut().unwrap().fitted = true),
        ];
        assert_eq!(names(&sound()), Vec::<&str>::new());
        assert!(broken(&[sound()]).is_empty());
        for (rule, change) in breaks {
            let mut claim = sound();
            change(&mut claim);
            assert_eq!(names(&claim), [rule], "{}", claim.text);
            assert_eq!(broken(&[claim]).len(), 1);
        }
        assert!(
            RULES.iter().all(|rule| breaks.iter().any(|(name, _)| *name == rule.name)),
            "a rule has no control"
        );
    }

    #[test]
    fn figures_are_numbers_with_units_that_no_setting_explains() {
        let found = |text| figures(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            found("1,234.5 ns, −6.70 %; 2\u{a0}× `3 ms` 4 flushes"),
            ["1234.5 ns", "-6.70 %", "2 ×", "4"]
        );
        assert!(found("416 vCPUs, 4 KiB, p99.9, x86_64, 32,764 slots").is_empty());
        assert!(figures("1.50 µs")[0].value().total_cmp(&1500.0).is_eq());
    }

    #[test]
    fn a_row_in_which_slat_is_worse_is_lost() {
        use crate::report::{Source, cell, heads, number};
        let rows = [["1", "1.1 µs", "999 ns"], ["2", "1 ns", "–"]];
        let table = Table::of(
            "t",
            rows,
            [
                (number("vCPUs"), &|row| cell(row[0])),
                (heads("slat", Source::Here), &|row| cell(row[1])),
                (heads("old", Source::Here), &|row| cell(row[2])),
            ],
        );
        let ranked = |better| Ranked { slat: "slat".into(), others: vec!["old".into()], better };
        assert_eq!(lost(&table, &ranked(Better::Less)), ["1, against old"]);
        assert!(lost(&table, &ranked(Better::More)).is_empty());
        assert_eq!(below_one("from 0.93 × to 28 ×, 0.5 ms"), ["0.93 ×"]);
        let absent = Ranked { slat: "none".into(), ..ranked(Better::Less) };
        assert!(!lost(&table, &absent).is_empty(), "a column that is missing is no win");
    }
}
