//! A page of figures that were taken once (`measure/bench/tests/report.data.json`, cut down): its two faces, and what they say.

use crate::report::page_html;
use crate::report::page_markdown;
use crate::report::page_model::{Block, Doc, Mark, Plot, Table};
use crate::report::page_sections;
use crate::report::plot;
use crate::report::report_data::{Data, Outcome, Part};
use crate::report::series::answers;
use crate::report::series::series_answer::Answer;
use crate::threads::bench_report::Check;
use std::collections::BTreeSet;

fn fixture() -> Data {
    serde_json::from_str(include_str!("../../tests/report.data.json")).unwrap()
}

/// Everything, with what is folded.
fn blocks(doc: &Doc) -> Vec<&Block> {
    fn inside(block: &Block) -> Vec<&Block> {
        match block {
            Block::Fold(_, blocks) => std::iter::once(block).chain(blocks.iter().flat_map(inside)).collect(),
            _ => vec![block],
        }
    }
    doc.sections.iter().flat_map(|section| &section.blocks).flat_map(inside).collect()
}

fn plots(doc: &Doc) -> Vec<&Plot> {
    let plots = blocks(doc).into_iter().filter_map(|block| match block {
        Block::Plots(plots) => Some(plots),
        _ => None,
    });
    plots.flatten().collect()
}

fn tables(doc: &Doc) -> Vec<&Table> {
    let tables = blocks(doc).into_iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        _ => None,
    });
    tables.collect()
}

/// A text without the part between these.
fn without(mut text: String, from: &str, to: &str) -> String {
    while let Some(start) = text.find(from) {
        let end = text[start..].find(to).map_or(text.len(), |end| start + end + to.len());
        text.replace_range(start..end, " ");
    }
    text
}

/// Every word with a digit in it.
fn figures(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| c.is_whitespace() || "|*#`()\u{a0}".contains(c));
    let figures = words.filter(|word| word.contains(|c: char| c.is_ascii_digit()));
    figures.map(|word| word.trim_matches([',', '.', ':', ';']).to_owned()).collect()
}

fn of_html(doc: &Doc) -> BTreeSet<String> {
    let page = ["style", "svg", "nav"]
        .iter()
        .fold(page_html::page(doc), |page, tag| without(page, &format!("<{tag}"), &format!("</{tag}>")));
    let text = without(page, "<", ">").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    figures(&text.replace("&amp;", "&"))
}

fn of_markdown(doc: &Doc) -> BTreeSet<String> {
    let text: Vec<String> =
        page_markdown::page(doc).lines().filter(|line| !line.starts_with("![")).map(str::to_owned).collect();
    let text = without(text.join("\n").replace("<details><summary>", " "), "</", ">").replace("\\|", "|");
    figures(&text.replace("&lt;", "<").replace("&amp;", "&"))
}

#[test]
fn both_faces_have_the_same_figures() {
    let doc = page_sections::doc(&fixture());
    let (html, markdown) = (of_html(&doc), of_markdown(&doc));
    let only =
        |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect::<Vec<_>>();
    assert_eq!((only(&html, &markdown), only(&markdown, &html)), (vec![], vec![]));
    assert!(html.len() > 300, "{}", html.len());
}

#[test]
fn a_figure_that_one_face_lacks_is_noticed() {
    let mut doc = page_sections::doc(&fixture());
    let html = of_html(&doc);
    doc.sections[0].blocks.push(Block::Text("it takes 123.456 ns".into()));
    assert_ne!(html, of_markdown(&doc));
}

#[test]
fn the_same_data_are_the_same_page() {
    let pages = [(); 2].map(|()| {
        let doc = page_sections::doc(&fixture());
        (page_html::page(&doc), page_markdown::page(&doc))
    });
    assert_eq!(pages[0], pages[1]);
}

#[test]
fn no_figure_is_none() {
    let mut data = fixture();
    // A quotient by zero must not show.
    for part in &mut data.parts {
        match &mut part.outcome {
            Outcome::Bench(bench) => {
                bench.rows.iter_mut().for_each(|row| (row.slat, row.ratio) = (0.0, None));
            }
            Outcome::Sim(sim) => sim.rows.iter_mut().for_each(|row| (row.wall_ns, row.operations) = (0, 0)),
            Outcome::Replay(replay) => replay.stretches.iter_mut().for_each(|stretch| stretch.ms = 0.0),
            Outcome::Failed(_) => {}
        }
    }
    for data in [data, fixture()] {
        let doc = page_sections::doc(&data);
        for text in [page_html::page(&doc), page_markdown::page(&doc)] {
            for none in ["NaN", "inf ", "inf<", "Infinity"] {
                assert!(!text.contains(none), "{none}");
            }
        }
    }
}

#[test]
fn every_plot_is_a_file_of_its_own() {
    let doc = page_sections::doc(&fixture());
    let plots = plots(&doc);
    let names: BTreeSet<&str> = plots.iter().map(|plot| plot.id.as_str()).collect();
    assert!(names.len() == plots.len() && plots.len() >= 10, "{names:?}");
    for one in plots {
        let file = plot::file(&one.svg);
        assert!(
            file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" ")
                && file.contains("prefers-color-scheme")
        );
        assert!(one.about.len() > 40 && one.title.len() > 20 && !one.from.is_empty(), "{}", one.id);
        assert!(page_markdown::page(&doc).contains(&format!("({}.svg)", one.id)));
    }
}

#[test]
fn tables_have_a_cell_for_each_column() {
    for table in tables(&page_sections::doc(&fixture())) {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.caption);
        assert!(!table.caption.is_empty());
    }
}

#[test]
fn what_does_not_hold_is_red_and_what_is_missing_is_said() {
    let sound = page_sections::doc(&fixture());
    assert!(!blocks(&sound).iter().any(|block| matches!(block, Block::Alarm(_))));
    let mut data = fixture();
    data.interrupted = true;
    let outcome = Outcome::Failed("out of memory".into());
    data.parts.push(Part { command: "bench zap".into(), seconds: 1.0, outcome });
    let Some(Outcome::Bench(bench)) =
        data.parts.iter_mut().map(|part| &mut part.outcome).find(|one| matches!(one, Outcome::Bench(_)))
    else {
        panic!("no bench")
    };
    bench.checks.push(Check { name: "every page is mapped".into(), ok: false, detail: "3 of 4".into() });
    let doc = page_sections::doc(&data);
    let alarms = blocks(&doc).iter().filter(|block| matches!(block, Block::Alarm(_))).count();
    assert_eq!(alarms, 2);
    let failed = tables(&doc).into_iter().find(|table| table.caption == "Checks that do not hold").unwrap();
    assert!(failed.rows.len() == 2 && failed.rows.iter().all(|row| row[2].mark == Mark::Bad));
    for text in [page_html::page(&doc), page_markdown::page(&doc)] {
        for said in ["2 checks do not hold", "Interrupted", "every page is mapped", "3 of 4", "out of memory"]
        {
            assert!(text.contains(said), "{said}");
        }
    }
}

#[test]
fn a_report_of_nothing_is_a_page_too() {
    let data = Data { parts: Vec::new(), interrupted: true, ..fixture() };
    let doc = page_sections::doc(&data);
    assert!(
        page_markdown::page(&doc).contains("0 parts were measured")
            && page_html::page(&doc).contains("The change-pte series")
    );
}

/// The data with slat and its baselines exchanged.
fn turned(mut data: Data) -> Data {
    for part in &mut data.parts {
        match &mut part.outcome {
            Outcome::Bench(bench) => {
                for row in &mut bench.rows {
                    if let Some(baseline) = row.baseline {
                        (row.baseline, row.slat) = (Some(row.slat), baseline);
                        row.ratio = row.ratio.map(|ratio| 1.0 / ratio);
                    }
                }
            }
            Outcome::Sim(sim) => {
                for row in &mut sim.rows {
                    row.figures.iter_mut().for_each(|figure| figure.value = 1e6 / figure.value.max(1e-6));
                    (row.wall_ns, row.waiting) = (1_000_000_000 / row.wall_ns.max(1), 1.0 - row.waiting);
                }
            }
            _ => {}
        }
    }
    data
}

/// The kept results, as if a report had measured them.
fn kept() -> Data {
    let result = |kept: crate::registry::Kept| {
        let path = format!("{}/../results/{}-2-cores.json", env!("CARGO_MANIFEST_DIR"), kept.file);
        let bench = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        Part { command: format!("bench {}", kept.command), seconds: 1.0, outcome: Outcome::Bench(bench) }
    };
    let parts = crate::registry::kept().map(result).collect();
    Data { parts, ..fixture() }
}

/// The titles of plots and the lines of cards in which slat loses.
fn losses(data: &Data) -> usize {
    let titles = |answer: &Answer| {
        let plots = answer.section.blocks.iter().filter_map(|block| match block {
            Block::Plots(plots) => Some(plots),
            _ => None,
        });
        let titles = plots.flatten().map(|plot| plot.title.clone());
        titles.chain(answer.card.lines.iter().map(|line| line.about.clone())).collect::<Vec<_>>()
    };
    answers(data).iter().flat_map(titles).filter(|text| text.contains("slat loses")).count()
}

#[test]
fn titles_and_cards_say_where_slat_loses() {
    for (name, data, turned) in
        [("taken once", fixture(), turned(fixture())), ("kept", kept(), turned(kept()))]
    {
        assert!(losses(&turned) >= losses(&data) + 4, "{name}: {} of {}", losses(&turned), losses(&data));
    }
}

/// The simulated ratios of a report, beside the series'.
fn simulated_ratios(data: &mut Data) -> Vec<&mut crate::sim::sim_report::Against> {
    let sims = data.parts.iter_mut().filter_map(|part| match &mut part.outcome {
        Outcome::Sim(sim) => Some(sim),
        _ => None,
    });
    sims.flat_map(|sim| &mut sim.against_series).filter(|one| one.unit == "ratio").collect()
}

/// `sim` prints these for every report. Without them here, no test judges what the page says of them.
#[test]
fn simulated_ratios_name_their_sides() {
    let mut data = fixture();
    let ratios = simulated_ratios(&mut data);
    assert!(ratios.len() >= 30 && ratios.iter().all(|one| one.sides.is_some()), "{}", ratios.len());
    assert!(crate::report::sound(&data));
}

#[test]
fn negative_control_a_ratio_without_sides_is_an_alarm_and_a_failure() {
    let mut data = fixture();
    let ratios = simulated_ratios(&mut data);
    let count = ratios.len();
    for one in ratios {
        one.sides = None;
    }
    assert!(!crate::report::sound(&data));
    let doc = page_sections::doc(&data);
    assert_eq!(blocks(&doc).iter().filter(|block| matches!(block, Block::Alarm(_))).count(), count);
}

/// An earlier version called a published figure `seed`, and named no sides.
#[test]
fn a_report_of_an_earlier_version_is_read() {
    let text = include_str!("../../tests/report.data.json").replace("\"published\":", "\"seed\":");
    let data: Data = serde_json::from_str(&text).unwrap();
    assert!(crate::report::sound(&data));
}
