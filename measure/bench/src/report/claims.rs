//! The claims of a page, for [`crate::rules`]: titles of plots, figures of cards, verdicts.

use super::doc::{Block, Card, CardLine, Plot, Source, Table};
use super::series::Answer;
use super::verdict::{Says, Tolerance, Verdict};
use crate::rules::{self, Claim, Judged};

/// Of all answers.
pub fn of(answers: &[Answer]) -> Vec<Claim> {
    answers.iter().flat_map(of_answer).collect()
}

fn of_answer(answer: &Answer) -> Vec<Claim> {
    let (mut plots, mut rows) = (Vec::new(), Vec::new());
    answer.section.blocks.iter().for_each(|block| walk(block, &mut plots, &mut rows));
    let mut claims: Vec<Claim> = plots.into_iter().map(|plot| of_plot(plot, &rows)).collect();
    claims.extend(of_card(&answer.card, &rows));
    claims.extend(answer.verdicts.iter().map(of_verdict));
    claims
}

/// The plots of a block, and all that its tables say.
fn walk<'a>(block: &'a Block, plots: &mut Vec<&'a Plot>, rows: &mut Vec<String>) {
    let mut table = |table: &Table| rows.extend(rules::said(table));
    match block {
        Block::Table(one) => table(one),
        Block::Plots(all) => {
            all.iter().filter_map(|plot| plot.figures.as_ref()).for_each(table);
            plots.extend(all);
        }
        Block::Fold(_, blocks) => blocks.iter().for_each(|block| walk(block, plots, rows)),
        _ => {}
    }
}

/// A plot's title stands on what it draws, or where that is not printed beside it, on the tables of its section.
fn of_plot(plot: &Plot, section: &[String]) -> Claim {
    let lost = plot.figures.iter().zip(&plot.ranked).flat_map(|(table, ranked)| rules::lost(table, ranked));
    let lost = lost.chain(rules::below_one(&plot.title));
    Claim {
        place: plot.id.clone(),
        text: plot.title.clone(),
        rows: plot.figures.as_ref().map_or_else(|| section.to_vec(), |table| rules::said(table).collect()),
        sides: plot.sides.iter().cloned().collect(),
        lost: lost.collect(),
        verdict: None,
    }
}

/// The lines of a card, and all of its ratios together.
fn of_card<'a>(card: &'a Card, section: &'a [String]) -> impl Iterator<Item = Claim> + 'a {
    let of_line = |line: &CardLine| Claim {
        place: card.title.clone(),
        text: format!("{}: {}", line.figure, line.about),
        rows: section.to_vec(),
        sides: line.sides.iter().cloned().collect(),
        lost: if line.loses && line.from != Source::Series { vec![line.figure.clone()] } else { Vec::new() },
        verdict: None,
    };
    let sides: Vec<_> = card.lines.iter().filter_map(|line| line.sides.clone()).collect();
    let names = sides.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let together = Claim { place: card.title.clone(), text: names, sides, ..Claim::default() };
    card.lines.iter().map(of_line).chain([together])
}

fn of_verdict(verdict: &Verdict) -> Claim {
    let [published, ours] = [&verdict.published, &verdict.ours];
    Claim {
        place: verdict.claim.clone(),
        text: [published.text(), ours.text(), verdict.tolerance.text()].join("; "),
        // It is printed from its own figures.
        rows: vec![published.text(), ours.text(), verdict.tolerance.text()],
        sides: [published, ours].into_iter().filter_map(|told| told.sides.clone()).collect(),
        lost: Vec::new(),
        verdict: Some(Judged {
            decided: verdict.says() != Says::Nothing,
            tolerance: verdict.tolerance.text(),
            fitted: matches!(verdict.tolerance, Tolerance::Fitted),
        }),
    }
}
