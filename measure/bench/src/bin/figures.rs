//! The figures of the documents, from `measure/results/`: `cargo run -p slat-bench --bin figures` writes the book's chapter of
//! benchmarks, and the table in `README.md`. The tests compare both with the results, byte by byte.

use indicatif::HumanCount;
use slat_bench::lever_tables;
use slat_bench::levers;
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
const MORE: &[(&str, &[Headline])] = &[
    ("demand-paging", TOUCHED),
    ("demand-paging-prefilled", TOUCHED),
    ("demand-paging-minor", TOUCHED),
    ("demand-paging-missing", TOUCHED),
    (
        "aging-pass",
        &[
            Headline {
                what: "an idle pass that looks at every table",
                against: "reading the same memory",
                row: "idle, every table looked at",
                params: AGED,
            },
            Headline {
                what: "an idle pass that skips idle tables by their links",
                against: "reading the same memory",
                row: "idle, passed over by links",
                params: AGED,
            },
        ],
    ),
    (
        "dirty-log-perf",
        &[
            Headline {
                what: "vCPUs store to all memory again, log by write protection",
                against: LOGGED,
                row: "dirty memory, later",
                params: &[("exit", "0 ns"), ("pages", "4k"), ("slat", "write protection"), ("test", "log")],
            },
            Headline {
                what: "the same, log by D bits",
                against: LOGGED,
                row: "dirty memory, later",
                params: &[("exit", "0 ns"), ("pages", "4k"), ("slat", "D bits"), ("test", "log")],
            },
            Headline {
                what: "a harvest of that log, by D bits",
                against: LOGGED,
                row: "get (and clear), later",
                params: &[("exit", "0 ns"), ("pages", "4k"), ("slat", "D bits"), ("test", "log")],
            },
            Headline {
                what: "a harvest of that log, by rings",
                against: LOGGED,
                row: "get (and clear), later",
                params: &[("exit", "0 ns"), ("pages", "4k"), ("slat", "ring"), ("test", "log")],
            },
            Headline {
                what: "a log of pages of 2 MiB is switched on, with an eager split",
                against: LOGGED,
                row: "enable",
                params: &[("exit", "0 ns"), ("pages", "2m"), ("slat", "D bits"), ("test", "log")],
            },
        ],
    ),
    ("nested", NESTED),
    ("nested-exits", NESTED),
    (
        "migrate",
        &[Headline {
            what: "the whole migration",
            against: "halt first, then send",
            row: "whole migration",
            params: &[("baseline", "halt first, send everything")],
        }],
    ),
    (
        "reclaim",
        &[
            Headline {
                what: "pages of `cc1` that are brought in again",
                against: "aging that asks no guest",
                row: "walk-secondary off: before",
                params: REFAULTED,
            },
            Headline { what: "the same", against: "exact LRU", row: "exact LRU", params: REFAULTED },
            Headline {
                what: "the same, with the future known",
                against: "Belady's optimum",
                row: "Belady's optimum",
                params: REFAULTED,
            },
        ],
    ),
];
const TOUCHED: &[Headline] = &[Headline {
    what: "all vCPUs have touched their memory",
    against: "the same engine under one mutex",
    row: "one mutex: before",
    params: &[("figure", "time")],
}];
const AGED: levers::Params = &[("mapped", "every page"), ("memory", "1G"), ("tables", "in order")];
const LOGGED: &str = "write protection under one mutex";
const REFAULTED: levers::Params = &[("figure", "pages brought in again"), ("guest", "cc1"), ("limit", "50%")];

/// Rows of a guest of the guest, on one vCPU.
const NESTED: &[Headline] = &[
    nested("L2 touches a page that T maps", &[("figure", "first touch"), ("vcpus", "1")]),
    nested("L2 touches a page of 2 MiB", &[("figure", "  of 2 MiB, in T and in the host"), ("vcpus", "1")]),
    nested(
        "INVEPT after which nothing has changed",
        &[("figure", "INVEPT, nothing changed"), ("vcpus", "1")],
    ),
    nested("INVEPT that drops all", &[("figure", "INVEPT that drops all"), ("vcpus", "1")]),
    nested("the same, and all pages again", &[("figure", "  drops all: with them"), ("vcpus", "1")]),
    nested(
        "an entry of each table has changed: INVEPT",
        &[("figure", "INVEPT, an entry of each table changed"), ("vcpus", "1")],
    ),
    nested(
        "the same, with L1's exits and the pages again",
        &[("figure", "  entries changed: with them and L1's exits"), ("vcpus", "1")],
    ),
    nested(
        "the host takes a page back, no nested guest",
        &[("figure", "the host takes a page back, no nested guest"), ("vcpus", "1")],
    ),
    nested(
        "the same, beside L2, which does not have it",
        &[("figure", "  that L2 does not have"), ("vcpus", "1")],
    ),
    nested("the same, and L2 has it once", &[("figure", "  that L2 has once"), ("vcpus", "1")]),
    nested("the same, and L2 has it 100 times", &[("figure", "  that L2 has 100 times"), ("vcpus", "1")]),
    nested("tables and reverse map", &[("figure", "memory"), ("vcpus", "1")]),
];

const fn nested(what: &'static str, params: levers::Params) -> Headline {
    Headline { what, against: "a model of KVM's shadow MMU", row: "write-protected, one lock", params }
}

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
    let lines: Vec<Line> = kept().iter().flat_map(|kept| lines(kept, kept.headlines)).collect();
    let mut text =
        format!("{machine}\n\n| what | unit | baseline | slat | command |\n|---|---|---|---|---|\n");
    for line in &lines {
        writeln!(text, "{} `slat bench {}` |", line.text(), line.command)?;
    }
    Ok(text)
}

/// The machine of all kept results.
fn machine() -> String {
    read(kept()[0].file).machine.to_string()
}

/// A figure beside its baseline's, with the row that has it.
struct Line {
    command: String,
    figure: &'static Headline,
    row: Row,
    unit: String,
}

impl Line {
    /// The cells of its table that say what was measured, and both figures.
    fn text(&self) -> String {
        let Self { figure: Headline { what, against, .. }, row, unit, .. } = self;
        let loses = if loses(row) { "; slat loses" } else { "" };
        let spread = if is_inside_spread(row) { "; inside the spread" } else { "" };
        let [baseline, slat] = measured(row);
        format!("| {what}{loses}{spread} | {unit} | {against}: {baseline} | **{slat}** |")
    }
}

/// The rows of a kept result that these headlines name.
fn lines(Kept { file, command, .. }: &Kept, headlines: &'static [Headline]) -> Vec<Line> {
    let Report { machine: measured_on, rows, .. } = read(file);
    assert_eq!(measured_on.to_string(), machine(), "{file}: another machine");
    let line = |figure: &'static Headline| {
        let row = rows.iter().find(|row| row.is(figure.row, figure.params));
        let row = row.unwrap_or_else(|| panic!("{file}: no row {}", figure.row)).clone();
        let unit = row.unit.replace("/fault", "").replace("/iteration", "").replace("us", "µs");
        Line { command: command.clone(), figure, row, unit }
    };
    headlines.iter().map(line).collect()
}

/// The lines that the chapter shows of a kept result: those whose figures no table of it has.
fn shown(kept: &Kept) -> Vec<Line> {
    let more = MORE.iter().find(|(file, _)| *file == kept.file).map_or(&[][..], |(_, more)| more);
    let rows = read(kept.file).rows;
    let has = |figures: &[Option<lever_tables::Figure>], samples: &[f64]| {
        figures.iter().flatten().any(|figure| figure.samples == samples)
    };
    let is_in_grid = |row: &Row| {
        let filled = kept.levers.iter().flat_map(|grid| grid.fill(&rows));
        let baseline = row.baseline_samples.as_deref().unwrap_or_default();
        filled.into_iter().any(|figures| has(&figures, &row.slat_samples) && has(&figures, baseline))
    };
    let lines = [kept.headlines, more].into_iter().flat_map(|headlines| lines(kept, headlines));
    lines.filter(|line| !is_in_grid(&line.row)).collect()
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
         Each bench compares slat with the same work done another way, which its table names. Each figure is the median of the rounds\n\
         of one interleaved run, with the least and the greatest sample. A factor is against the first column of its table: above 1 a\n\
         cell takes less. ≈: at 95 of 100 the factor may as well be 1. The text under a table says which idea is that of a\n\
         [patch series](sources.md), and which is slat's. Hundreds of vCPUs are [simulated](measure.md).\n\n\
         Machine: {}.\n\n\
         `cargo run -p slat-bench --bin figures` writes this chapter from `measure/results/`, and a test compares the two. `slat report`\n\
         prints every row of a run; `slat bench NAME --json` prints what `measure/results/` keeps.\n",
        machine()
    );
    for kept in kept() {
        section(&mut text, &kept, &read(kept.file))?;
    }
    Ok(text)
}

fn section(text: &mut String, kept: &Kept, result: &Report) -> fmt::Result {
    let Kept { file, question, command, levers, .. } = kept;
    let holds = result.checks.iter().filter(|check| check.ok).count();
    let (runs, checks) = (&result.params["runs"], result.checks.len());
    write!(text, "\n## {file}\n\n{question}\n\n")?;
    writeln!(text, "`slat bench {command}`; {runs} runs; {holds} of {checks} checks hold.")?;
    lever_tables::markdown(text, (levers, &result.rows, command), measured_of)?;
    let lines = shown(kept);
    if !lines.is_empty() {
        write!(text, "\n| what | unit | baseline | slat |\n|---|---|---|---|\n")?;
    }
    for line in lines {
        writeln!(text, "{}", line.text())?;
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
        let mut named: Vec<_> = kept().iter().map(|kept| format!("{}-2-cores.json", kept.file)).collect();
        let files = fs::read_dir(root().join("measure/results")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        named.sort();
        files.sort();
        assert_eq!(named, files);
        for Kept { file, command, .. } in kept() {
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
