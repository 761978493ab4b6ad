//! A page of figures that were taken once (`cli/tests/report.data.json`, cut down): its two faces, and what they say.

use super::data::{Check, Data, Outcome, Part};
use super::doc::{Block, Doc, Mark, Plot, Table};
use super::{html, markdown, page, plot};
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

/// What is between these, gone.
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
        .fold(html::page(doc), |page, tag| without(page, &format!("<{tag}"), &format!("</{tag}>")));
    let text = without(page, "<", ">").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    figures(&text.replace("&amp;", "&"))
}

fn of_markdown(doc: &Doc) -> BTreeSet<String> {
    let text: Vec<String> =
        markdown::page(doc).lines().filter(|line| !line.starts_with("![")).map(str::to_owned).collect();
    let text = without(text.join("\n").replace("<details><summary>", " "), "</", ">").replace("\\|", "|");
    figures(&text.replace("&lt;", "<").replace("&amp;", "&"))
}

#[test]
fn both_faces_have_the_same_figures() {
    let doc = page::doc(&fixture());
    let (html, markdown) = (of_html(&doc), of_markdown(&doc));
    let only =
        |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect::<Vec<_>>();
    assert_eq!((only(&html, &markdown), only(&markdown, &html)), (vec![], vec![]));
    assert!(html.len() > 300, "{}", html.len());
}

#[test]
fn a_figure_that_one_face_lacks_is_noticed() {
    let mut doc = page::doc(&fixture());
    let html = of_html(&doc);
    doc.sections[0].blocks.push(Block::Text("it takes 123.456 ns".into()));
    assert_ne!(html, of_markdown(&doc));
}

#[test]
fn the_same_data_are_the_same_page() {
    let pages = [(); 2].map(|()| {
        let doc = page::doc(&fixture());
        (html::page(&doc), markdown::page(&doc))
    });
    assert_eq!(pages[0], pages[1]);
}

#[test]
fn no_figure_is_none() {
    let mut data = fixture();
    // What divides by nothing must not show.
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
        let doc = page::doc(&data);
        for text in [html::page(&doc), markdown::page(&doc)] {
            for none in ["NaN", "inf ", "inf<", "Infinity"] {
                assert!(!text.contains(none), "{none}");
            }
        }
    }
}

#[test]
fn every_plot_is_a_file_of_its_own() {
    let doc = page::doc(&fixture());
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
        assert!(markdown::page(&doc).contains(&format!("({}.svg)", one.id)));
    }
}

#[test]
fn tables_have_a_cell_for_each_column() {
    for table in tables(&page::doc(&fixture())) {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.caption);
        assert!(!table.caption.is_empty());
    }
}

#[test]
fn what_does_not_hold_is_red_and_what_is_missing_is_said() {
    let sound = page::doc(&fixture());
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
    let doc = page::doc(&data);
    let alarms = blocks(&doc).iter().filter(|block| matches!(block, Block::Alarm(_))).count();
    assert_eq!(alarms, 2);
    let failed = tables(&doc).into_iter().find(|table| table.caption == "Checks that do not hold").unwrap();
    assert!(failed.rows.len() == 2 && failed.rows.iter().all(|row| row[2].mark == Mark::Bad));
    for text in [html::page(&doc), markdown::page(&doc)] {
        for said in ["2 checks do not hold", "Interrupted", "every page is mapped", "3 of 4", "out of memory"]
        {
            assert!(text.contains(said), "{said}");
        }
    }
}

#[test]
fn a_report_of_nothing_is_a_page_too() {
    let data = Data { parts: Vec::new(), interrupted: true, ..fixture() };
    let doc = page::doc(&data);
    assert!(
        markdown::page(&doc).contains("0 parts were measured")
            && html::page(&doc).contains("The change-pte series")
    );
}
