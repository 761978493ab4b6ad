//! The figures of the documents, from `bench-results/`: `cargo run -p slat-bench --bin figures` writes `BENCHMARKS.md`, and the
//! table of six in `README.md`. Its tests hold both against the results, byte by byte.

use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A file of `bench-results/`, what it answers, and the command that made it.
struct Kept {
    file: &'static str,
    question: &'static str,
    command: &'static str,
}

const fn kept(file: &'static str, question: &'static str, command: &'static str) -> Kept {
    Kept { file, question, command }
}

const KEPT: [Kept; 15] = [
    kept("fault-floor", "What does one 4 KiB fault cost?", "fault-floor --runs 25"),
    kept("demand-paging", "Four vCPUs touch new memory, and the host fills pages.", "demand-paging"),
    kept(
        "demand-paging-prefilled",
        "Four vCPUs touch memory that the host has already.",
        "demand-paging --prefilled --runs 25",
    ),
    kept("demand-paging-minor", "The same, served by handlers, minor faults.", "demand-paging -u minor"),
    kept("demand-paging-missing", "The same, served by handlers, missing pages.", "demand-paging -u missing"),
    kept(
        "invalidate",
        "What does a thread that invalidates single pages back to back cost a fault beside it?",
        "invalidate --runs 9",
    ),
    kept("zap", "What does it take to zap 1 to 64 GiB, and what do faults elsewhere notice?", "zap"),
    kept("memslot-perf", "What do 10 to 1,000,000 memslots cost guest and host?", "memslot-perf --kvm"),
    kept(
        "access-tracking-perf",
        "What does aging cost vCPUs that fault memory in meanwhile?",
        "access-tracking-perf --performance -l -b 128M --runs 9",
    ),
    kept("aging-pass", "What does a pass over Accessed bits cost?", "aging-pass --runs 9"),
    kept(
        "dirty-log-perf",
        "What does it cost to know which pages a guest writes?",
        "dirty-log-perf --ring 64K --runs 9",
    ),
    kept("migrate", "How long does a guest stand still while it migrates over TCP?", "migrate"),
    kept("reclaim", "Which pages go when memory is short?", "reclaim"),
    kept("ksm-perf", "What does same-page merging cost running guests and their host?", "ksm-perf --runs 25"),
    kept("numa-balancing", "What does a guest pay for a host that balances its nodes?", "numa-balancing"),
];

/// A row of the README: what was measured, and which row of which file has it.
struct Figure {
    what: &'static str,
    against: &'static str,
    file: &'static str,
    row: &'static str,
    params: &'static [(&'static str, &'static str)],
}

const FIGURES: [Figure; 6] = [
    Figure {
        what: "a 4 KiB fault, two vCPU threads, in order",
        against: "the same engine under a reader-writer lock",
        file: "fault-floor",
        row: "slat --mmu-lock read-write",
        params: &[("order", "sequential"), ("tables", "present"), ("vcpus", "2")],
    },
    Figure {
        what: "a fault beside a thread that invalidates other pages",
        against: "the same engine under a reader-writer lock",
        file: "invalidate",
        row: "slat --mmu-lock read-write",
        params: &[("beside", "elsewhere, mapped")],
    },
    Figure {
        what: "1 GiB of 4 KiB pages is unmapped beside a vCPU that faults",
        against: "leaf by leaf, not by tables",
        file: "zap",
        row: "unhook: total",
        params: &[("baseline", "leaf by leaf"), ("pages", "dense"), ("size", "1G")],
    },
    Figure {
        what: "one of 32,764 memslots moves while its guest uses it",
        against: "a sorted array, copied for each change",
        file: "memslot-perf",
        row: "move-active",
        params: &[("slots", "32764")],
    },
    Figure {
        what: "one aging pass while 16 vCPUs fault",
        against: "page by page under the lock",
        file: "access-tracking-perf",
        row: "page by page, lock (no opt) → slat",
        params: &[("figure", "average pass"), ("vcpus", "16")],
    },
    Figure {
        what: "a guest of 1 GiB that writes stands still for its migration",
        against: "halt first, then send",
        file: "migrate",
        row: "downtime",
        params: &[("baseline", "halt first, send everything")],
    },
];

const BEGIN: &str =
    "<!-- figures: `cargo run -p slat-bench --bin figures` writes this from bench-results/ -->\n";
const END: &str = "<!-- end of figures -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> Value {
    let path = root().join(format!("bench-results/{file}-2-cores.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn main() -> io::Result<()> {
    fs::write(root().join("BENCHMARKS.md"), benchmarks())?;
    let readme = fs::read_to_string(root().join("README.md"))?;
    fs::write(root().join("README.md"), with_figures(&readme))
}

/// The README with its figures as they are.
fn with_figures(readme: &str) -> String {
    let (before, rest) = readme.split_once(BEGIN).expect("README.md: where its figures begin");
    let (_, after) = rest.split_once(END).expect("README.md: where its figures end");
    format!("{before}{BEGIN}{}{END}{after}", figures())
}

/// The table of the README.
fn figures() -> String {
    let machine = machine(&read(FIGURES[0].file));
    let mut text =
        format!("{machine}\n\n| what | unit | baseline | slat | command |\n|---|---|---|---|---|\n");
    for figure in &FIGURES {
        let result = read(figure.file);
        assert_eq!(machine, self::machine(&result), "{}: another machine", figure.file);
        let has = |row: &Value| {
            let is = |(key, value): &(&str, &str)| plain(&row["params"][key]) == *value;
            row["name"] == figure.row && figure.params.iter().all(is)
        };
        let row = rows(&result).find(|row| has(row));
        let row = row.unwrap_or_else(|| panic!("{}: no row {}", figure.file, figure.row));
        let command = KEPT.iter().find(|kept| kept.file == figure.file).expect("listed").command;
        let baseline = measured(&row["baseline"], &row["baseline_samples"]);
        let slat = measured(&row["slat"], &row["slat_samples"]);
        let unit = plain(&row["unit"]).replace("/fault", "").replace("/iteration", "").replace("us", "µs");
        writeln!(
            text,
            "| {} | {unit} | {baseline}: {} | **{slat}** | `slat bench {command}` |",
            figure.what, figure.against
        )
        .expect("a string takes all");
    }
    text
}

/// All of it: a section for each file.
fn benchmarks() -> String {
    let mut text = String::from(
        "# Benchmarks\n\n\
         Generated from `bench-results/` by `cargo run -p slat-bench --bin figures`. Do not edit: a test compares this page with\n\
         the results.\n\n\
         Each figure is the median of the rounds of one run, with its least and greatest sample. Baseline and slat ran interleaved\n\
         in that run. The ratio is baseline / slat, so above 1 slat takes less. *Answers* names the patch series whose claim the\n\
         row answers ([sources](book/src/sources.md)), or KVM, and the ratio that is reported there for this comparison.\n\
         Every command takes `--json`, which prints what `bench-results/` keeps.\n\n",
    );
    for Kept { file, question, .. } in &KEPT {
        writeln!(text, "* [{file}](#{file}): {question}").expect("a string takes all");
    }
    for Kept { file, question, command } in &KEPT {
        section(&mut text, (file, question, command), &read(file)).expect("a string takes all");
    }
    text
}

fn section(
    text: &mut String,
    (file, question, command): (&str, &str, &str),
    result: &Value,
) -> std::fmt::Result {
    let checks: Vec<bool> =
        result["checks"].as_array().into_iter().flatten().map(|c| c["ok"] == true).collect();
    let hold = checks.iter().filter(|ok| **ok).count();
    write!(text, "\n## {file}\n\n{question}\n\n```console\n$ slat bench {command}\n```\n\n")?;
    writeln!(text, "{}; {}.", machine(result), settings(&result["params"]))?;
    writeln!(text, "{hold} of {} checks hold.", checks.len())?;
    let rows: Vec<&Value> = rows(result).collect();
    for group in rows.chunk_by(|a, b| a["params"] == b["params"] && a["unit"] == b["unit"]) {
        let unit = plain(&group[0]["unit"]);
        let settings = settings(&group[0]["params"]);
        let head = if settings.is_empty() { unit } else { format!("{settings}; {unit}") };
        write!(text, "\n{head}\n\n| | baseline | slat | ratio | answers |\n|---|---|---|---|---|\n")?;
        for row in group {
            let ratio = row["ratio"].as_f64().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
            let answers = row["series"].as_str().map_or("", slat_series::name);
            let claim =
                row["series_ratio"].as_f64().map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
            writeln!(
                text,
                "| {} | {} | {} | {ratio} | {answers}{claim} |",
                plain(&row["name"]),
                measured(&row["baseline"], &row["baseline_samples"]),
                measured(&row["slat"], &row["slat_samples"]),
            )?;
        }
    }
    Ok(())
}

/// Where it was measured.
fn machine(result: &Value) -> String {
    let [cpu, cores, arch, os] = ["cpu", "cores", "arch", "os"].map(|key| plain(&result["machine"][key]));
    format!("{cpu}, {cores} cores, {arch}, {os}")
}

fn rows(result: &Value) -> impl Iterator<Item = &Value> {
    result["rows"].as_array().into_iter().flatten()
}

/// Text without quotes.
fn plain(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.replace('|', "\\|").replace('<', "\\<")
}

/// Parameters as words: `order random, vcpus 2`.
fn settings(params: &Value) -> String {
    let words = params.as_object().into_iter().flatten();
    let words = words.map(|(key, value)| format!("{} {}", key.replace('_', " "), plain(value)));
    words.collect::<Vec<_>>().join(", ")
}

/// A median, with the least and the greatest sample where they differ.
fn measured(median: &Value, samples: &Value) -> String {
    let Some(median) = median.as_f64() else { return "–".to_owned() };
    let samples = || samples.as_array().into_iter().flatten().filter_map(Value::as_f64);
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
    let text = format!("{value:.decimals$}");
    if decimals > 0 {
        return text;
    }
    let digits = text.trim_start_matches('-');
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if text.starts_with('-') { format!("-{grouped}") } else { grouped }
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
        assert!(document("BENCHMARKS.md") == benchmarks(), "BENCHMARKS.md is {SAYS}");
    }

    #[test]
    fn the_readme_has_the_figures_and_at_most_a_thousand_words() {
        let readme = document("README.md");
        assert!(readme == with_figures(&readme), "README.md is {SAYS}");
        let words = readme.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
        assert!(words <= 1000, "{words} words");
        let changed = readme.replacen("µs | ", "µs | 9", 1);
        assert!(changed != readme && with_figures(&changed) == readme, "a typed figure is overwritten");
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
        let mut kept: Vec<_> = KEPT.iter().map(|kept| format!("{}-2-cores.json", kept.file)).collect();
        let files = fs::read_dir(root().join("bench-results")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        kept.sort();
        files.sort();
        assert_eq!(kept, files);
        for Kept { file, command, .. } in &KEPT {
            let result = read(file);
            assert_eq!(command.split(' ').next(), result["bench"].as_str(), "{file}");
            if let Some((_, runs)) = command.split_once("--runs ") {
                assert_eq!(runs, plain(&result["params"]["runs"]), "{file}");
            }
        }
    }

    #[test]
    fn numbers_have_three_digits_or_all_before_the_point() {
        let numbers = [0.0, 0.3747, 3.1035, 9.996, 55.84, 99.96, 982_539.278, -1234.0].map(number);
        assert_eq!(numbers, ["0", "0.375", "3.10", "10.0", "55.8", "100", "982,539", "-1,234"]);
        assert_eq!(measured(&1.0.into(), &serde_json::json!([1.0, 2.0])), "1.00 (1.00–2.00)");
        assert_eq!(
            (measured(&Value::Null, &Value::Null), measured(&7.5.into(), &Value::Null)),
            ("–".into(), "7.50".into())
        );
    }
}
