//! A strict parser of Prometheus' text, version 0.0.4, with the conventions for names.

use std::collections::{BTreeMap, BTreeSet};

/// Metrics of one name.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    /// Values by name and labels, as in the text.
    pub series: BTreeMap<String, f64>,
}

type Labels = BTreeMap<String, String>;

fn is_name(text: &str) -> bool {
    let is_first = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    text.starts_with(is_first) && text.chars().all(|letter| is_first(letter) || letter.is_ascii_digit())
}

/// Parses `name{label="value",…} number`.
fn series(line: &str) -> Result<(String, Labels, f64), String> {
    let wrong = |what: &str| format!("{what}: {line}");
    let (series, number) = line.rsplit_once(' ').ok_or_else(|| wrong("no number"))?;
    let number: f64 = number.parse().map_err(|_| wrong("no number"))?;
    let (name, mut rest) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').ok_or_else(|| wrong("no `}`"))?),
        None => (series, ""),
    };
    if !is_name(name) {
        return Err(wrong("no name"));
    }
    let mut labels = Labels::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").ok_or_else(|| wrong("no label"))?;
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let end = loop {
            match letters.next() {
                Some((at, '"')) => break at + 1,
                Some((_, '\\')) => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter @ ('"' | '\\'))) => value.push(letter),
                    _ => return Err(wrong("an unknown escape")),
                },
                Some((_, letter)) => value.push(letter),
                None => return Err(wrong("a value without end")),
            }
        };
        rest = &after[end..];
        rest = if rest.is_empty() { rest } else { rest.strip_prefix(',').ok_or_else(|| wrong("no `,`"))? };
        if !is_name(label) || labels.insert(label.into(), value).is_some() {
            return Err(wrong("a wrong label, or one twice"));
        }
    }
    Ok((name.into(), labels, number))
}

/// Parses the text. `Err`: the first violation of the format or of the conventions.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let (mut families, mut all) = (BTreeMap::<String, Family>::new(), BTreeSet::new());
    let (mut name, mut kind, mut samples) = (String::new(), String::new(), Vec::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (of, meaning) = help.split_once(' ').ok_or_else(|| format!("no help: {line}"))?;
            let typed = lines.next().and_then(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
            (name, kind) = match typed {
                Some((typed, kind)) if typed == of && !meaning.is_empty() => (of.into(), kind.into()),
                _ => return Err(format!("no help or no type of {of}")),
            };
            check_name(&name, &kind)?;
        } else {
            let (sample, labels, number) = series(line)?;
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let suffix = sample.strip_prefix(&*name).filter(|_| !name.is_empty());
            let suffix = suffix.filter(|suffix| suffixes.contains(suffix));
            let Some(suffix) = suffix else { return Err(format!("not of the family {name:?}: {line}")) };
            if !all.insert((sample.clone(), labels.clone())) {
                return Err(format!("a series twice: {line}"));
            }
            if kind != "gauge" && !(number >= 0.0 && number.is_finite()) {
                return Err(format!("a counter that is not finite, or under 0: {line}"));
            }
            samples.push((suffix.to_owned(), labels, number, line));
        }
        if lines.peek().is_none_or(|next| next.starts_with('#')) {
            if kind == "histogram" {
                check_histogram(&samples).map_err(|what| format!("{name}: {what}"))?;
            }
            let key = |line: &str| line.rsplit_once(' ').map(|(series, _)| series.to_owned());
            let series = samples.drain(..).filter_map(|(.., number, line)| Some((key(line)?, number)));
            let family = Family { kind: kind.clone(), series: series.collect() };
            if families.insert(name.clone(), family).is_some() {
                return Err(format!("a family twice: {name}"));
            }
        }
    }
    Ok(families)
}

/// Checks the conventions: base units, `_total` of counters alone, and no name of a histogram's part.
fn check_name(name: &str, kind: &str) -> Result<(), String> {
    const OTHER_UNITS: [&str; 12] =
        ["ms", "us", "ns", "millis", "micros", "nanos", "minutes", "hours", "kib", "mib", "kb", "mb"];
    let has_other_unit = name.split('_').any(|word| OTHER_UNITS.contains(&word));
    let is_unit_last = ["seconds", "bytes"].iter().all(|unit| {
        let rest = name.strip_suffix("_total").unwrap_or(name);
        !rest.split('_').any(|word| word == *unit) || rest.ends_with(unit)
    });
    let ends = ["_bucket", "_sum", "_count", "_info"].iter().any(|end| name.ends_with(end));
    let is_known = ["counter", "gauge", "histogram"].contains(&kind);
    let is_counter = kind == "counter";
    if !is_name(name) || !is_known || has_other_unit || !is_unit_last {
        return Err(format!("a name or a type against the conventions: {name} {kind}"));
    }
    if name.ends_with("_total") != is_counter || (ends && name != "slat_pager_build_info") {
        return Err(format!("a wrong suffix: {name} {kind}"));
    }
    if kind == "histogram" && !name.ends_with("_seconds") {
        return Err(format!("a histogram without a unit: {name}"));
    }
    Ok(())
}

/// Checks each histogram of a family: bounds and counts grow, and the last count is that of all.
fn check_histogram(samples: &[(String, Labels, f64, &str)]) -> Result<(), String> {
    let mut by_labels = BTreeMap::<Labels, (Vec<(f64, f64)>, usize, Option<f64>)>::new();
    for (suffix, labels, number, line) in samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le");
        let (buckets, sums, count) = by_labels.entry(labels).or_default();
        match (&**suffix, bound) {
            ("_bucket", Some(bound)) => {
                buckets.push((bound.parse().map_err(|_| format!("no bound: {line}"))?, *number));
            }
            ("_sum", None) => *sums += 1,
            ("_count", None) => *count = Some(*number),
            _ => return Err(format!("a wrong part: {line}")),
        }
    }
    for (labels, (buckets, sums, count)) in by_labels {
        let grows = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let last = buckets.last().filter(|(bound, _)| *bound == f64::INFINITY).map(|(_, number)| *number);
        if !grows || last.is_none() || last != count || sums != 1 {
            return Err(format!("{labels:?}: buckets that do not grow, or without an end, a sum or a count"));
        }
    }
    Ok(())
}

const GOOD: &str = "\
# HELP a_seconds Times.
# TYPE a_seconds histogram
a_seconds_bucket{of=\"x\\\"y\",le=\"0.5\"} 1
a_seconds_bucket{of=\"x\\\"y\",le=\"+Inf\"} 3
a_seconds_sum{of=\"x\\\"y\"} 9.5
a_seconds_count{of=\"x\\\"y\"} 3
# HELP b_total Things.
# TYPE b_total counter
b_total 7
# HELP c_bytes None so far.
# TYPE c_bytes gauge
";

/// The parser's own test: each change of a good text is found.
#[test]
fn the_parser_accepts_a_good_text_and_refuses_each_bad_one() {
    let families = parse(GOOD).unwrap();
    assert_eq!(families.len(), 3);
    assert_eq!((&*families["b_total"].kind, families["b_total"].series["b_total"]), ("counter", 7.0));
    let changes = [
        ("# TYPE b_total counter\n", "", "no help or no type"),
        ("# TYPE b_total counter", "# TYPE c_total counter", "no help or no type"),
        ("# HELP b_total Things.\n", "", "no number"),
        ("# HELP b_total Things.\n# TYPE b_total counter\n", "", "not of the family"),
        ("b_total 7\n", "b_total 7\nb_total 8\n", "a series twice"),
        ("b_total 7", "b_total -7", "under 0"),
        ("b_total 7", "b_total seven", "no number"),
        ("b_total", "b", "a wrong suffix"),
        ("c_bytes", "c_total", "a wrong suffix"),
        ("c_bytes", "c_ms", "against the conventions"),
        ("c_bytes", "bytes_of_c", "against the conventions"),
        ("gauge\n", "gauge", "the last line"),
        ("le=\"0.5\"} 1", "le=\"0.5\"} 4", "buckets that do not grow"),
        ("le=\"+Inf\"} 3", "le=\"1\"} 3", "buckets that do not grow"),
        ("a_seconds_count{of=\"x\\\"y\"} 3", "a_seconds_count{of=\"x\\\"y\"} 2", "or a count"),
        ("a_seconds_sum{of=\"x\\\"y\"} 9.5\n", "", "a sum"),
        ("x\\\"y\"} 9.5", "x\\y\"} 9.5", "an unknown escape"),
        ("{of=\"x\\\"y\"} 9.5", "{of=\"x\\\"y\",of=\"z\"} 9.5", "one twice"),
    ];
    for (from, to, expected) in changes {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "{from}");
        let error = parse(&text).map(drop).expect_err(from);
        assert!(error.contains(expected), "{from}: {error}");
    }
    let twice = format!("{GOOD}{GOOD}");
    assert!(parse(&twice).is_err());
}
