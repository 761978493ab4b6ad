//! The figures of the documents, from `measure/results/`: `cargo run -p slat-bench --bin figures` writes the book's chapter of
//! benchmarks, and the table in `README.md`. The tests compare both with the results, byte by byte.

use slat_bench::figure_text::digits;
use slat_bench::lever_tables;
use slat_bench::levers::Params;
use slat_bench::registry::{self, Kept};
use slat_bench::results::{Report, Row};
use slat_bench::scenario::Headline;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str =
    "<!-- figures: `cargo run -p slat-bench --bin figures` writes this from measure/results/ -->\n";
const END: &str = "<!-- end of figures -->\n";
const CHAPTER: &str = "book/src/benchmarks.md";

/// Rows that the chapter shows of a file beside its tables of what brings what and its lines of the README.
#[rustfmt::skip]
const MORE: &[(&str, Headline)] = &[
    ("demand-paging", TOUCHED),
    ("demand-paging-prefilled", TOUCHED),
    ("demand-paging-minor", TOUCHED),
    ("demand-paging-missing", TOUCHED),
    ("aging-pass", line("an idle pass that looks at every table", MEMORY, "idle, every table looked at", AGED)),
    ("aging-pass", line("an idle pass that skips idle tables by their links", MEMORY, "idle, passed over by links", AGED)),
    ("dirty-log-perf", line("vCPUs store to all memory again, log by write protection", LOGGED, "dirty memory, later", &by("write protection"))),
    ("dirty-log-perf", line("the same, log by D bits", LOGGED, "dirty memory, later", &by("D bits"))),
    ("dirty-log-perf", line("a harvest of that log, by D bits", LOGGED, "get (and clear), later", &by("D bits"))),
    ("dirty-log-perf", line("a harvest of that log, by rings", LOGGED, "get (and clear), later", &by("ring"))),
    ("dirty-log-perf", line("a log of pages of 2 MiB is switched on, with an eager split", LOGGED, "enable",
        &[("exit", "0 ns"), ("pages", "2m"), ("slat", "D bits"), ("test", "log")])),
    ("migrate", line("the whole migration", "halt first, then send", "whole migration", &[("baseline", "halt first, send everything")])),
    ("reclaim", line("pages of `cc1` that are brought in again", "aging that asks no guest", "walk-secondary off: before", REFAULTED)),
    ("reclaim", line("the same", "exact LRU", "exact LRU", REFAULTED)),
    ("reclaim", line("the same, with the future known", "Belady's optimum", "Belady's optimum", REFAULTED)),
];
/// The figures of a guest of the guest.
#[rustfmt::skip]
const NESTED: &[Headline] = &[
    line("L2's first touch of a page", SHADOWS, LOCKED, &[("figure", "first touch"), ("vcpus", "1")]),
    line("of a page of 2 MiB", SHADOWS, LOCKED, &[("figure", "  of 2 MiB, in T and in the host"), ("vcpus", "1")]),
    line("INVEPT, nothing changed", SHADOWS, LOCKED, &[("figure", "INVEPT, nothing changed"), ("vcpus", "1")]),
    line("INVEPT that drops all", SHADOWS, LOCKED, &[("figure", "INVEPT that drops all"), ("vcpus", "1")]),
    line("the same, and all pages again", SHADOWS, LOCKED, &[("figure", "  drops all: with them"), ("vcpus", "1")]),
    line("INVEPT, an entry of each table changed", SHADOWS, LOCKED, &[("figure", "INVEPT, an entry of each table changed"), ("vcpus", "1")]),
    line("the same, and all pages again", SHADOWS, LOCKED, &[("figure", "  entries changed: with them and L1's exits"), ("vcpus", "1")]),
    line("a page taken back, no nested guest", SHADOWS, LOCKED, &[("figure", "the host takes a page back, no nested guest"), ("vcpus", "1")]),
    line("the same, and L2 lacks it", SHADOWS, LOCKED, &[("figure", "  that L2 does not have"), ("vcpus", "1")]),
    line("the same, and L2 has it once", SHADOWS, LOCKED, &[("figure", "  that L2 has once"), ("vcpus", "1")]),
    line("the same, and L2 has it 100 times", SHADOWS, LOCKED, &[("figure", "  that L2 has 100 times"), ("vcpus", "1")]),
    line("tables and reverse map", SHADOWS, LOCKED, &[("figure", "memory"), ("vcpus", "1")]),
];
const TOUCHED: Headline = line(
    "all vCPUs have touched their memory",
    "the same engine under one mutex",
    "one mutex: before",
    &[("figure", "time")],
);
const WITHOUT_EXITS: &[Headline] = &[NESTED[0]];
const SHADOWS: &str = "KVM's way";
const LOCKED: &str = "write-protected, one lock";
const MEMORY: &str = "reading the same memory";
const AGED: Params = &[("mapped", "every page"), ("memory", "1G"), ("tables", "in order")];
const LOGGED: &str = "write protection under one mutex";
const REFAULTED: Params = &[("figure", "pages brought in again"), ("guest", "cc1"), ("limit", "50%")];

const fn line(what: &'static str, against: &'static str, row: &'static str, params: Params) -> Headline {
    Headline { what, against, row, params }
}

/// A log of pages of 4 KiB.
const fn by(slat: &'static str) -> [(&'static str, &'static str); 4] {
    [("exit", "0 ns"), ("pages", "4k"), ("slat", slat), ("test", "log")]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> Report {
    let path = root().join(format!("measure/results/{file}-2-cores.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn main() -> Result<(), Box<dyn Error>> {
    fs::write(root().join(CHAPTER), chapter()?)?;
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
    let machine = machine();
    let lines: Vec<Line> =
        registry::kept().flat_map(|kept| lines(&kept, kept.headlines.iter().copied())).collect();
    let mut text =
        format!("{machine}\n\n| what | unit | baseline | slat | command |\n|---|---|---|---|---|\n");
    for line in &lines {
        writeln!(text, "{} `slat bench {}` |", line.text(), line.command)?;
    }
    Ok(text)
}

/// The machine of all kept results.
fn machine() -> String {
    registry::kept().next().map_or_else(String::new, |kept| read(kept.file).machine.to_string())
}

/// A figure beside its baseline's, with the row that has it.
struct Line {
    command: String,
    figure: Headline,
    row: Row,
    unit: String,
}

impl Line {
    /// The cells of its table that say what was measured, and both figures.
    fn text(&self) -> String {
        let [baseline, slat] = measured(&self.row);
        format!("| {} | {} | {}: {baseline} | **{slat}** |", self.what(), self.unit, self.figure.against)
    }

    /// The measurement, and whether slat loses.
    fn what(&self) -> String {
        let loses = if loses(&self.row) { "; slat loses" } else { "" };
        let spread = if is_inside_spread(&self.row) { " ≈" } else { "" };
        format!("{}{loses}{spread}", self.figure.what)
    }
}

/// The rows of a kept result that these headlines name.
fn lines(Kept { file, command, .. }: &Kept, headlines: impl Iterator<Item = Headline>) -> Vec<Line> {
    let Report { machine: measured_on, rows, .. } = read(file);
    assert_eq!(measured_on.to_string(), machine(), "{file}: another machine");
    let line = |figure: Headline| {
        let row = rows.iter().find(|row| row.is(figure.row, figure.params));
        let row = row.unwrap_or_else(|| panic!("{file}: no row {}", figure.row)).clone();
        let unit = row.unit.replace("/fault", "").replace("/iteration", "").replace("us", "µs");
        Line { command: command.clone(), figure, row, unit }
    };
    headlines.map(line).collect()
}

/// The lines that the chapter shows of a kept result: those whose figures no table of it has.
fn shown(kept: &Kept) -> Vec<Line> {
    let more = MORE.iter().filter(|(file, _)| *file == kept.file).map(|(_, more)| *more);
    let shadows: &[Headline] = match kept.file {
        "nested-exits" => NESTED,
        "nested" => WITHOUT_EXITS,
        _ => &[],
    };
    let rows = read(kept.file).rows;
    let has = |figures: &[Option<lever_tables::Figure>], samples: &[f64]| {
        figures.iter().flatten().any(|figure| figure.samples == samples)
    };
    let is_in_grid = |row: &Row| {
        let filled = kept.levers.iter().flat_map(|grid| grid.fill(&rows));
        let baseline = row.baseline_samples.as_deref().unwrap_or_default();
        filled.into_iter().any(|figures| has(&figures, &row.slat_samples) && has(&figures, baseline))
    };
    let lines = lines(kept, kept.headlines.iter().copied().chain(more).chain(shadows.iter().copied()));
    lines.into_iter().filter(|line| !is_in_grid(&line.row)).collect()
}

/// Whether the two may as well be equal.
fn is_inside_spread(row: &Row) -> bool {
    lever_tables::is_inside_spread(row.baseline_samples.as_deref().unwrap_or_default(), &row.slat_samples)
}

/// Whether slat's figure is worse than the baseline's.
fn loses(row: &Row) -> bool {
    row.baseline.is_some_and(|baseline| row.slat > baseline)
}

/// The chapter: a section for each file.
fn chapter() -> Result<String, fmt::Error> {
    let mut text = format!(
        "# What brings what\n\n\
         Each bench compares slat with the same work done another way, as its table says. A figure is the median of one\n\
         interleaved run, with the least and the greatest sample. A factor is against the first column: above 1 is\n\
         less. ≈: at 95 of 100 it may as well be 1. The text under a table says which idea is that of a [patch\n\
         series](sources.md), and which is slat's. Hundreds of vCPUs are [simulated](measure.md).\n\n\
         Machine: {}.\n\n\
         `cargo run -p slat-bench --bin figures` writes this chapter from `measure/results/`.\n",
        machine()
    );
    for kept in registry::kept() {
        section(&mut text, &kept, &read(kept.file))?;
    }
    Ok(text)
}

fn section(text: &mut String, kept: &Kept, result: &Report) -> fmt::Result {
    let Kept { file, question, command, levers, .. } = kept;
    let holds = result.checks.iter().filter(|check| check.ok).count();
    let (runs, checks) = (&result.params["runs"], result.checks.len());
    write!(text, "\n## {file}\n\n{question}\n\n")?;
    writeln!(text, "`slat bench {command}`; {runs} runs; {holds}/{checks} checks.")?;
    lever_tables::markdown(text, levers, &result.rows, measured_of)?;
    // A table for each baseline.
    for lines in shown(kept).chunk_by(|one, next| one.figure.against == next.figure.against) {
        write!(text, "\n| what | {} | slat |\n|---|---|---|\n", lines[0].figure.against)?;
        for line in lines {
            let [baseline, slat] = measured(&line.row);
            writeln!(text, "| {}, {} | {baseline} | **{slat}** |", line.what(), line.unit)?;
        }
    }
    Ok(())
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
    let range = [samples().reduce(f64::min), samples().reduce(f64::max)].map(|end| end.map(digits));
    match range {
        [Some(least), Some(most)] if least != most => format!("{} ({least}–{most})", digits(median)),
        _ => digits(median),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str) -> String {
        fs::read_to_string(root().join(name)).unwrap()
    }

    const SAYS: &str = "stale: `cargo run -p slat-bench --bin figures` writes it anew";

    #[test]
    fn the_chapter_has_the_results_in_at_most_3000_words() {
        let chapter = document(CHAPTER);
        assert!(chapter == super::chapter().unwrap(), "{CHAPTER} is {SAYS}");
        let words = chapter.split_whitespace().count();
        assert!(words <= 3000, "{words} words");
    }

    #[test]
    fn the_readme_has_the_figures_and_at_most_800_words() {
        let readme = document("README.md");
        assert!(readme == with_figures(&readme).unwrap(), "README.md is {SAYS}");
        let words = readme.split_whitespace().count();
        assert!(words <= 800, "{words} words");
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
        let mut named: Vec<_> = registry::kept().map(|kept| format!("{}-2-cores.json", kept.file)).collect();
        let files = fs::read_dir(root().join("measure/results")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        named.sort();
        files.sort();
        assert_eq!(named, files);
        for Kept { file, command, .. } in registry::kept() {
            let result = read(file);
            assert_eq!(command.split(' ').next(), Some(&*result.bench), "{file}");
            if let Some((_, runs)) = command.split_once("--runs ") {
                assert_eq!(runs, result.params["runs"].to_string(), "{file}");
            }
        }
    }

    #[test]
    fn a_median_has_its_range() {
        assert_eq!([measured_of(1.0, &[1.0, 2.0]), measured_of(7.5, &[])], ["1.00 (1.00–2.00)", "7.50"]);
    }
}
