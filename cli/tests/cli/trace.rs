//! `slat run --trace-events`: the lines have the format of `perf script` and add up to the report.

use crate::common::{File, refused, report, slat, text};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A heap whose pages are each stored to and loaded from, round after round.
fn guest(pages: u64, rounds: u64) -> String {
    let accesses = (0..rounds * pages).map(|at| 0x400_0000 + at % pages * 4096);
    accesses.flat_map(|at| [format!(" S {at:08x},8\n"), format!(" L {at:08x},8\n")]).collect()
}

/// Checks the form of a line; returns the kind of its event, and its values.
fn event(line: &str) -> (&str, Vec<(&str, &str)>) {
    let (head, event) = line.split_once(": slat:").unwrap_or_else(|| panic!("no event: {line}"));
    let head: Vec<&str> = head.split_whitespace().collect();
    let [program, thread, processor, seconds] = head[..] else { panic!("{line}") };
    assert_eq!(program, "slat");
    assert!(thread.parse::<u32>().is_ok() && seconds.parse::<f64>().is_ok(), "{line}");
    assert!(processor.starts_with('[') && processor.ends_with(']'), "{line}");
    let (kind, values) = event.split_once(':').unwrap();
    (kind, values.split_whitespace().map(|value| value.split_once('=').unwrap()).collect())
}

/// Number of events of this kind with all of these values, and the sum of the value `of`, if given.
fn sum(lines: &str, kind: &str, with: &[(&str, &str)], of: Option<&str>) -> u64 {
    let events = lines.lines().map(event).filter(|(name, _)| *name == kind);
    let events = events.filter(|(_, values)| with.iter().all(|one| values.contains(one)));
    events
        .map(|(_, values)| match of {
            Some(of) => values.iter().find(|(name, _)| *name == of).unwrap().1.parse().unwrap(),
            None => 1,
        })
        .sum()
}

/// Compares the lines with the report. Returns the first difference.
fn compare(lines: &str, report: &Value) -> Result<(), String> {
    let fault = |result| sum(lines, "fault", &[("result", result)], None);
    let retry = |cause| sum(lines, "retry", &[("cause", cause)], None);
    let flushes = |of| sum(lines, "flush", &[], of);
    let [faults, flushed] = [&report["faults"], &report["flushes"]];
    for (what, found, said) in [
        ("mapped", fault("mapped-4k") + fault("mapped-2m") + fault("mapped-1g"), &faults["map"]),
        ("fixed", fault("fixed"), &faults["permission"]),
        ("spurious", fault("spurious"), &faults["spurious"]),
        ("mmio", fault("mmio"), &faults["mmio"]),
        ("moved", retry("moved"), &faults["retry_by"]["moved"]),
        ("covered", retry("covered"), &faults["retry_by"]["covered"]),
        ("lost", retry("lost"), &faults["retry_by"]["lost"]),
        ("asked again", retry("asked-again"), &faults["asked_again"]),
        ("flushes", flushes(None), &flushed["paid"]),
        ("edits", flushes(Some("edits")), &flushed["requested"]),
        ("pages", flushes(Some("pages")), &flushed["pages"]),
    ] {
        if *said != found {
            return Err(format!("{what}: {found} in the events, {said} in the report"));
        }
    }
    Ok(())
}

#[test]
fn the_events_of_a_run_add_up_to_its_report() {
    let trace = File::new("events.trace", guest(600, 20).as_bytes());
    let events = File::new("events.txt", b"old contents");
    let args =
        ["-t", trace.path(), "-v", "2", "--churn", "200000", "--pages", "thp", "--dirty-log", "bitmap"];
    let report = report(&[&args[..], &["--trace-events", events.path()]].concat(), b"");
    let lines = fs::read_to_string(events.path()).unwrap();
    assert_eq!(compare(&lines, &report), Ok(()));
    assert!(report["faults"]["map"].as_u64() > Some(0) && report["flushes"]["paid"].as_u64() > Some(0));
    assert!(sum(&lines, "zap", &[("cause", "migrate")], Some("leaves")) > 0, "the host moves pages");
    assert!(sum(&lines, "flush", &[("cause", "dirty-log")], None) > 0, "and harvests");
    // The comparison notices one missing line.
    let left_out = lines.lines().position(|line| event(line).0 == "flush").unwrap();
    let others = lines.split_inclusive('\n').enumerate().filter(|(at, _)| *at != left_out);
    let one_less: String = others.map(|(_, line)| line).collect();
    assert!(compare(&one_less, &report).unwrap_err().starts_with("flushes"));
}

#[test]
fn events_go_to_standard_output_before_the_report() {
    let trace = File::new("events-stdout.trace", guest(30, 2).as_bytes());
    let output = slat(&["-t", trace.path(), "--churn", "0", "--trace-events", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let events: String = printed.split_inclusive('\n').take_while(|line| line.starts_with("slat ")).collect();
    assert!(sum(&events, "fault", &[("access", "write")], None) >= 30, "{printed}");
    assert!(printed.len() > events.len(), "there is a report");
}

#[test]
fn events_never_overwrite_a_trace() {
    let trace = File::new("events-harm.trace", guest(3, 1).as_bytes());
    refused(&["-t", trace.path(), "--json", "--trace-events", "-"], b"", "--trace-events -: --json");
    refused(&["-t", trace.path(), "--trace-events", trace.path()], b"", "is the same file");
    refused(
        &["-t", trace.path(), "--trace-events", "/nowhere/events"],
        b"",
        "--trace-events /nowhere/events",
    );
    assert_eq!(fs::read_to_string(Path::new(trace.path())).unwrap(), guest(3, 1));
}
