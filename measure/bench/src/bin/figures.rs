//! The figures of the documents, from `measure/results/`: `cargo run -p slat-bench --bin figures` writes `BENCHMARKS.md`, and the
//! table in `README.md`. Its tests hold both against the results, byte by byte.

use indicatif::HumanCount;
use serde_json::{Map, Value};
use slat_bench::lever_tables;
use slat_bench::registry::{self, Kept};
use slat_bench::results::{Report, Row, Settings};
use slat_bench::scenario::Headline;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str =
    "<!-- figures: `cargo run -p slat-bench --bin figures` writes this from measure/results/ -->\n";
const END: &str = "<!-- end of figures -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> Report {
    let path = root().join(format!("measure/results/{file}-2-cores.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The kept results, in the order of the registry.
fn kept() -> Vec<Kept> {
    registry::kept().collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    fs::write(root().join("BENCHMARKS.md"), benchmarks()?)?;
    let readme = fs::read_to_string(root().join("README.md"))?;
    Ok(fs::write(root().join("README.md"), with_figures(&readme)?)?)
}

/// The README with its figures as they are.
fn with_figures(readme: &str) -> Result<String, fmt::Error> {
    let (before, rest) = readme.split_once(BEGIN).expect("README.md: where its figures begin");
    let (_, after) = rest.split_once(END).expect("README.md: where its figures end");
    Ok(format!("{before}{BEGIN}{}{END}{after}", figures()?))
}

/// The table of the README: a line for each headline of the registry.
fn figures() -> Result<String, fmt::Error> {
    let machine = read(kept()[0].file).machine.to_string();
    let mut text =
        format!("{machine}\n\n| what | unit | baseline | slat | command |\n|---|---|---|---|---|\n");
    for Line { command, figure, row, unit } in lines(&machine) {
        let loses = if loses(&row) { "; slat loses" } else { "" };
        let spread = if is_inside_spread(&row) { "; inside the spread" } else { "" };
        let [baseline, slat] = measured(&row);
        writeln!(
            text,
            "| {}{loses}{spread} | {unit} | {baseline}: {} | **{slat}** | `slat bench {command}` |",
            figure.what, figure.against
        )?;
    }
    Ok(text)
}

/// A line of that table, with the row that has it.
struct Line {
    command: String,
    figure: &'static Headline,
    row: Row,
    unit: String,
}

fn lines(machine: &str) -> Vec<Line> {
    let of = |Kept { file, command, headlines, .. }: Kept| {
        let Report { machine: measured_on, rows, .. } = read(file);
        let line = move |figure: &'static Headline| {
            let mut rows = rows.iter();
            let row = rows.find(|row| row.is(figure.row, figure.params));
            let row = row.unwrap_or_else(|| panic!("{file}: no row {}", figure.row)).clone();
            let unit = row.unit.replace("/fault", "").replace("/iteration", "").replace("us", "µs");
            Line { command: command.clone(), figure, row, unit }
        };
        let lines: Vec<Line> = headlines.iter().map(line).collect();
        assert!(lines.is_empty() || machine == measured_on.to_string(), "{file}: another machine");
        lines
    };
    kept().into_iter().flat_map(of).collect()
}

/// Whether the two may as well be equal.
fn is_inside_spread(row: &Row) -> bool {
    lever_tables::is_inside_spread(row.baseline_samples.as_deref().unwrap_or_default(), &row.slat_samples)
}

/// Whether slat's figure is worse than the baseline's.
fn loses(row: &Row) -> bool {
    row.baseline.is_some_and(|baseline| row.slat > baseline)
}

/// All of it: a section for each file.
fn benchmarks() -> Result<String, fmt::Error> {
    let mut text = String::from(
        "# Benchmarks\n\n\
         Generated from `measure/results/` by `cargo run -p slat-bench --bin figures`. Do not edit: a test compares this page with\n\
         the results.\n\n\
         Each figure is the median of the rounds of one run, with its least and greatest sample. Baseline and slat ran interleaved\n\
         in that run. The ratio is baseline / slat, so above 1 slat takes less. *Answers* names the patch series whose claim the\n\
         row answers ([sources](book/src/sources.md)), or KVM, and the ratio that is reported there for this comparison.\n\
         Every command takes `--json`, which prints what `measure/results/` keeps.\n\n",
    );
    text += "## What brings what\n\n\
             slat answers a patch series with its idea and with ideas of slat's own. These tables take them apart. All figures of a table\n\
             are of one interleaved run; the factor is against the first column, so above 1 a cell takes less. ≈: with 95 of 100 the factor\n\
             may as well be 1, so that the difference lies inside the spread. What does not win is listed below its table.\n";
    for Kept { file, levers, command, .. } in kept().into_iter().filter(|kept| !kept.levers.is_empty()) {
        write!(text, "\n### {file}: what brings what\n")?;
        lever_tables::markdown(&mut text, (levers, &read(file).rows, &command), measured_of)?;
    }
    text += "\n## Every row\n\n";
    for Kept { file, question, .. } in kept() {
        writeln!(text, "* [{file}](#{file}): {question}")?;
    }
    for kept in kept() {
        section(&mut text, &kept, &read(kept.file))?;
    }
    Ok(text)
}

fn section(text: &mut String, kept: &Kept, result: &Report) -> fmt::Result {
    let Kept { file, question, command, .. } = kept;
    let hold = result.checks.iter().filter(|check| check.ok).count();
    write!(text, "\n## {file}\n\n{question}\n\n```console\n$ slat bench {command}\n```\n\n")?;
    writeln!(text, "{}; {}.", result.machine, settings(&result.params))?;
    writeln!(text, "{hold} of {} checks hold.", result.checks.len())?;
    for group in result.rows.chunk_by(|a, b| a.params == b.params && a.unit == b.unit) {
        let (unit, settings) = (escaped(&group[0].unit), settings(&group[0].params));
        let head = if settings.is_empty() { unit } else { format!("{settings}; {unit}") };
        write!(text, "\n{head}\n\n| | baseline | slat | ratio | answers |\n|---|---|---|---|---|\n")?;
        for row in group {
            let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
            let answers = row.series.as_deref().map_or("", slat_series::name);
            let claim = row.series_ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
            let [baseline, slat] = measured(row);
            let name = escaped(&row.name);
            writeln!(text, "| {name} | {baseline} | {slat} | {ratio} | {answers}{claim} |")?;
        }
    }
    Ok(())
}

/// Text of a cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// Parameters as words.
fn settings(params: &Map<String, Value>) -> String {
    escaped(&Settings(params).to_string().replace('_', " "))
}

/// The baseline and slat: a median, with the least and the greatest sample where they differ; a dash where there is none.
fn measured(row: &Row) -> [String; 2] {
    let samples = row.baseline_samples.as_deref().unwrap_or_default();
    let baseline = row.baseline.map_or_else(|| "–".to_owned(), |median| measured_of(median, samples));
    [baseline, measured_of(row.slat, &row.slat_samples)]
}

/// A median with its samples.
fn measured_of(median: f64, samples: &[f64]) -> String {
    let samples = || samples.iter().copied();
    let range = [samples().reduce(f64::min), samples().reduce(f64::max)].map(|end| end.map(number));
    match range {
        [Some(least), Some(most)] if least != most => format!("{} ({least}–{most})", number(median)),
        _ => number(median),
    }
}

/// Three digits that count, or all before the point.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        below if below < 1.0 => 3,
        below if below < 9.995 => 2,
        below if below < 99.95 => 1,
        _ => 0,
    };
    if decimals > 0 {
        return format!("{value:.decimals$}");
    }
    let minus = if value < 0.0 { "-" } else { "" };
    format!("{minus}{}", HumanCount(value.abs().round_ties_even() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str) -> String {
        fs::read_to_string(root().join(name)).unwrap()
    }

    const SAYS: &str = "stale: `cargo run -p slat-bench --bin figures` writes it anew";

    #[test]
    fn benchmarks_are_the_results() {
        assert!(document("BENCHMARKS.md") == benchmarks().unwrap(), "BENCHMARKS.md is {SAYS}");
    }

    #[test]
    fn the_readme_has_the_figures_and_at_most_a_thousand_words() {
        let readme = document("README.md");
        assert!(readme == with_figures(&readme).unwrap(), "README.md is {SAYS}");
        let words = readme.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
        assert!(words <= 1000, "{words} words");
        let changed = readme.replacen("µs | ", "µs | 9", 1);
        assert!(
            changed != readme && with_figures(&changed).unwrap() == readme,
            "a typed figure is overwritten"
        );
    }

    #[test]
    fn the_code_in_the_readme_is_code_that_is_tested() {
        let (readme, tested) = (document("README.md"), document("slat/src/lib.rs"));
        let block = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let lines: Vec<_> = block.lines().filter(|line| !line.is_empty()).collect();
        assert!(lines.len() >= 8);
        for line in lines {
            assert!(tested.contains(&format!("//! {line}\n")), "not in slat/src/lib.rs: {line}");
        }
    }

    #[test]
    fn every_result_is_shown_with_the_runs_that_its_command_asks_for() {
        let mut kept: Vec<_> =
            super::kept().iter().map(|kept| format!("{}-2-cores.json", kept.file)).collect();
        let files = fs::read_dir(root().join("measure/results")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        kept.sort();
        files.sort();
        assert_eq!(kept, files);
        for Kept { file, command, .. } in super::kept() {
            let result = read(file);
            assert_eq!(command.split(' ').next(), Some(&*result.bench), "{file}");
            if let Some((_, runs)) = command.split_once("--runs ") {
                assert_eq!(runs, result.params["runs"].to_string(), "{file}");
            }
        }
    }

    #[test]
    fn numbers_have_three_digits_or_all_before_the_point() {
        let numbers = [0.0, 0.3747, 3.1035, 9.996, 55.84, 99.96, 982_539.278, -1234.0].map(number);
        assert_eq!(numbers, ["0", "0.375", "3.10", "10.0", "55.8", "100", "982,539", "-1,234"]);
        assert_eq!([measured_of(1.0, &[1.0, 2.0]), measured_of(7.5, &[])], ["1.00 (1.00–2.00)", "7.50"]);
    }
}
