//! `slat run` from the outside: its output, its exit status, and its errors.

use crate::common::{File, command, end, refused, report, slat, slat_with, start, text};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

/// A program in lackey's format: code, a stack, and a heap of `pages` pages that is written, read and modified
/// `rounds` times.
pub fn trace(pages: u64, rounds: u64) -> String {
    let mut text = String::from("==1== Lackey, an example Valgrind tool\n");
    for round in 0..rounds {
        for page in 0..pages {
            let heap = 0x400_0000 + page * 4096 + round % 400 * 8;
            let stack = 0x1f_fe00_0000 + page % 16 * 8;
            writeln!(text, "I  {:08x},4", 0x10_8000 + page % 64 * 4).unwrap();
            writeln!(text, " S {heap:08x},8\n L {heap:08x},8\n M {stack:08x},4").unwrap();
            // Across a page border.
            writeln!(text, " L {:08x},16", 0x400_0ff8 + page * 4096).unwrap();
        }
    }
    text
}

#[test]
fn the_report_has_every_key_and_its_numbers_agree() {
    let file = File::new("keys.trace", trace(40, 50).as_bytes());
    let report = report(&["--trace", file.path(), "-v", "2"], b"");
    let number = |value: &Value| value.as_u64().unwrap();
    for (group, keys) in [
        ("faults", &["total", "map", "permission", "spurious", "mmio", "retry"][..]),
        ("fault_ns", &["p50", "p99", "p999"]),
        ("tlb", &["hits", "misses"]),
        ("flushes", &["requested", "paid", "pages"]),
        ("mapped", &["k4", "m2", "g1"]),
    ] {
        for key in keys {
            assert!(report[group][key].is_u64(), "{group}.{key}");
        }
    }
    let lines = 40 * 50 * 5 + 1;
    assert_eq!((number(&report["lines"]), number(&report["skipped_lines"])), (lines, 1));
    assert_eq!(number(&report["accesses"]), 2 * (lines - 1), "both vCPUs replay all of it");
    assert_eq!(number(&report["vcpus"]), 2);
    assert_eq!(number(&report["slots"]), 2 * 3, "code, heap and stack of each");
    assert!(number(&report["table_bytes"]) > 0 && number(&report["mapped_bytes"]) > 0);
    assert!(number(&report["dirty_pages"]) >= 2 * 40);
    assert!(report["overhead_percent"].is_f64() && report["wall_s"].is_f64());
}

#[test]
fn every_format_lock_and_page_size_runs_it() {
    let file = File::new("all.trace", trace(30, 20).as_bytes());
    for format in ["ept4", "ept5", "npt4", "npt5", "pae", "ept4-noad"] {
        assert_eq!(report(&["-t", file.path(), "-f", format], b"")["format"], format);
    }
    for lock in ["none", "read-write", "exclusive"] {
        report(&["-t", file.path(), "--mmu-lock", lock, "-v", "3", "--churn", "100000"], b"");
    }
    let huge = report(&["-t", file.path(), "--pages", "thp", "--churn", "0"], b"");
    assert!(huge["mapped"]["m2"].as_u64().unwrap() > 0 && huge["mapped"]["k4"] == 0);
}

#[test]
fn traces_come_compressed_piped_repeated_and_in_any_number() {
    let plain = trace(30, 10);
    let accesses = 30 * 10 * 5;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(plain.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let one = File::new("one.trace", plain.as_bytes());
    let two = File::new("two.trace.gz", &gzip);
    let count = |args: &[&str], input: &[u8]| report(args, input)["accesses"].as_u64().unwrap();
    assert_eq!(count(&["-t", two.path()], b""), accesses);
    assert_eq!(count(&["-t", "-", "-v", "2"], plain.as_bytes()), 2 * accesses);
    assert_eq!(count(&["-t", "-"], &gzip), accesses, "compression is told by content");
    // `trace(30, 10)`, compressed by `zstd -19`.
    let zstd = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/small.trace.zst");
    assert_eq!(count(&["-t", zstd], b""), accesses);
    assert_eq!(count(&["-t", one.path(), "-i", "3"], b""), 3 * accesses);
    assert_eq!(count(&["-t", one.path(), "-t", two.path()], b""), 2 * accesses, "a vCPU each");
    assert_eq!(
        count(&["-t", one.path(), "-t", two.path(), "-v", "1"], b""),
        2 * accesses,
        "one after the other"
    );
    assert_eq!(count(&["-t", one.path(), "-t", two.path(), "-v", "5"], b""), 5 * accesses, "copies");
}

#[test]
fn without_a_trace_it_replays_real_programs() {
    let report = report(&["-i", "1"], b"");
    assert_eq!(report["traces"], "cc1, sort, boot");
    assert!(report["accesses"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn garbled_lines_are_counted_or_refused_by_number() {
    let garbled = " L 04000000,8\nI  xyz,4\n S 04000000,\n L 04000008,8\n";
    let counted = report(&["-t", "-"], garbled.as_bytes());
    assert_eq!((&counted["accesses"], &counted["garbled_lines"]), (&2.into(), &2.into()));
    refused(&["-t", "-", "--strict"], garbled.as_bytes(), "line 2");
}

#[test]
fn bad_input_is_one_clear_line() {
    let file = File::new("good.trace", trace(8, 2).as_bytes());
    let good = file.path();
    let broken = File::new("broken.trace.gz", &[0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    refused(&["-t", "no/such/file"], b"", "cannot open no/such/file");
    refused(&["-t", env!("CARGO_TARGET_TMPDIR")], b"", "cannot");
    refused(&["-t", broken.path()], b"", "gzip");
    refused(&["-t", "-"], &[0x28, 0xb5, 0x2f, 0xfd, 0, 1, 2, 3], "zstd");
    refused(&["-t", "-"], b"", "no memory accesses");
    refused(&["-t", "-"], b"hello\nworld\n", "(Debian's package valgrind)");
    refused(&["-t", "-", "-t", "-"], b"", "standard input can be read once");
    refused(&["-t", "-", "-i", "2"], b"", "standard input can be read once");
    refused(&["-t", good, "--format", "sparc"], b"", "sparc");
    refused(&["-t", good, "--memory", "0"], b"", "at least");
    refused(&["-t", good, "--memory", "99999999T"], b"", "64");
    refused(&["-t", good, "--memory", "12parsecs"], b"", "parsecs");
    refused(&["-t", good, "--limit", "1K"], b"", "at least");
    refused(&["-t", good, "-v", "0"], b"", "0");
    refused(&["-t", good, "-v", "99999999999"], b"", "99999999999");
    refused(&["-t", good, "--frobnicate"], b"", "frobnicate");
    refused(&["-t", good, "--region", "nonsense"], b"", "START+SIZE");
    refused(&["-t", good, "--region", "0x1000+0"], b"", "at least one byte");
    refused(&["-t", good, "--region", "ffffffffffffffff+1M"], b"", "past the last address");
    refused(&["-t", good, "--region", "0x400000+4M", "--region", "0x500000+1M"], b"", "overlaps");
    refused(&["-t", good, "--region", "0+131072T"], b"", "more than --memory 8192M");
    refused(&["-t", good, "--region", "0x400000+16M", "-v", "4", "--memory", "64M"], b"", "4 replays");
    refused(&["-t", good, "-f", "pae", "--memory", "5G"], b"", "pae maps less guest memory");
    refused(&["-t", good, "--memory", "16M"], b"", "more than --memory 16M");
    refused(&["-t", good, "-i", "0"], b"", "0 is not in");
    refused(&["-t", good, "--churn", "1000001"], b"", "1000001");
    refused(&["-t", good, "--seed", "5", "--churn", "0"], b"", "--seed 5: nothing is random with --churn 0");
    refused(&["-t", good, "--mmu-lock", "hope"], b"", "hope");
    refused(&[good], b"", "unexpected argument");
}

#[test]
fn running_out_of_host_memory_is_an_error_and_no_panic() {
    let file = File::new("large.trace", trace(3000, 1).as_bytes());
    let args = ["-t", file.path(), "--limit", "16M", "-v", "4", "--churn", "0"];
    refused(&args, b"", "out of memory");
    let output = slat(&args);
    let says = text(&output.stderr);
    assert!(says.contains("--limit 16M is reached") && says.contains("--swap mem"), "{says}");
    assert!(!says.contains("swap does not take"), "there is none to blame: {says}");
}

#[test]
fn declared_regions_are_memslots_from_the_start() {
    let file = File::new("region.trace", trace(8, 2).as_bytes());
    let declared =
        report(&["-t", file.path(), "--region", "0x4000000+32M", "--region", "0x7f0000000000+1"], b"");
    assert_eq!(declared["slots"], 2 + 1 + 2, "two for the first, one for the second, and code and stack");
}

#[test]
fn a_closed_pipe_ends_the_run_without_a_panic() {
    let file = File::new("pipe.trace", trace(8, 2).as_bytes());
    // Shut down, not just closed: processes that other tests start now may hold copies of the descriptor for a while.
    let (reader, writer) = UnixStream::pair().unwrap();
    reader.shutdown(Shutdown::Both).unwrap();
    let child = command(&["-t", file.path()]).stdout(OwnedFd::from(writer)).spawn().unwrap();
    let output = end(child, "a closed pipe");
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), err), (Some(0), ""), "its reader has read enough");
}

/// Standard input stays open, so only the signal can end the run.
#[test]
fn an_interrupt_prints_what_there_is() {
    let report: Value = serde_json::from_slice(&interrupted(&["--json"]).stdout).unwrap();
    assert!(report["interrupted"] == true && report["accesses"].as_u64().unwrap() > 0);
    let page = interrupted(&[]).stdout;
    assert!(text(&page).contains("INTERRUPTED") && text(&page).contains("accesses"), "{}", text(&page));
    let file = File::new("whole.trace", trace(8, 2).as_bytes());
    let whole = slat(&["-t", file.path()]);
    assert!(whole.status.success() && !text(&whole.stdout).contains("INTERRUPTED"));
}

/// The output of an interrupted run.
fn interrupted(args: &[&str]) -> Output {
    let mut child = start(&[&["-t", "-"], args].concat());
    let mut stdin = child.stdin.take().unwrap();
    // More than pipe and queues hold: when all of it is written, the replay runs and the signal handler is installed.
    stdin.write_all(trace(64, 500).as_bytes()).unwrap();
    let kill = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let output = end(child, "an interrupt");
    drop(stdin);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    output
}

/// Why the guest must find corruption: the host moves a million random pages per second, one in 186 of them a page of
/// the guest, and the guest runs long enough for thousands of such moves. The TLB holds all of the guest's 66 pages,
/// so after its first move each page is read in a freed frame. The trace never writes to the end of a heap page and
/// reads it in every round, so no write hides the poison there. Three in ten reads are corrupt; one is enough.
/// (`crates/vcpu/tests/vcpu/stale.rs` tests the same in single steps.)
#[test]
fn negative_control_without_flushes_the_guest_finds_corruption() {
    let file = File::new("sabotage.trace", trace(64, 400).as_bytes());
    let args = ["-t", file.path(), "-i", "8", "--churn", "1000000", "--memory", "64M", "--json"];
    assert_eq!(slat(&args).status.code(), Some(0), "with flushes it is right");
    for lock in ["none", "exclusive"] {
        let output = slat(&[&args[..], &["--sabotage-flushes", "--mmu-lock", lock]].concat());
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["corrupt_reads"].as_u64().unwrap() > 0);
        assert!(report["first_corruption"].as_str().unwrap().contains("guest address"));
    }
}

#[test]
fn a_log_that_is_harvested_all_the_while_loses_nothing() {
    let file = File::new("log.trace", trace(30, 200).as_bytes());
    for flags in [
        &["--dirty-log", "bitmap"][..],
        &["--dirty-log", "bitmap", "--pages", "thp", "-f", "ept4-noad"],
        &["--dirty-log", "bitmap", "--churn", "100000", "--mmu-lock", "exclusive"],
        &["--dirty-log", "ring", "--churn", "100000"],
    ] {
        let report = report(&[&["-t", file.path(), "-v", "2"], flags].concat(), b"");
        let log = &report["dirty_log"];
        assert_eq!((&log["by"], &log["lost_pages"]), (&flags[1].into(), &0.into()), "{flags:?}");
        assert!(log["harvests"].as_u64().unwrap() > 0 && log["ring_full"].is_u64(), "{flags:?}");
        // Per vCPU: the heap, and a page of its stack.
        assert_eq!(report["dirty_pages"], 2 * (30 + 1), "{flags:?}");
        assert!(log["told_pages"].as_u64() >= report["dirty_pages"].as_u64(), "{flags:?}");
    }
    let off = report(&["-t", file.path()], b"");
    assert_eq!((&off["dirty_log"]["by"], &off["dirty_log"]["harvests"]), (&"off".into(), &0.into()));
}

/// The host moves no pages, so only the log can be wrong.
#[test]
fn negative_control_without_flushes_the_log_loses_writes() {
    let file = File::new("lost.trace", trace(30, 50).as_bytes());
    let args = ["-t", file.path(), "-i", "100", "--dirty-log", "bitmap", "--churn", "0", "--json"];
    let output = slat(&[&args[..], &["--sabotage-flushes"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["dirty_log"]["lost_pages"].as_u64().unwrap() > 0);
    assert_eq!(report["corrupt_reads"], 0);
}

#[test]
fn help_shows_an_example() {
    let output = slat(&["--help"]);
    assert!(output.status.success() && text(&output.stdout).contains("valgrind --tool=lackey"));
}

#[test]
fn small_figures_and_odd_lines_are_told_as_they_are() {
    let lines = b" S 04000000,8\n L 0400000000000000,8\n L 200000000000000,8\n L zzz,8\n";
    let output = slat_with(&["-t", "-"], lines);
    let said = text(&output.stdout);
    for line in [
        "guest     standard input on 1 vCPUs, ",
        "4 lines, 0 of them no accesses, 1 garbled, 2 that reach beyond 2^57\n",
        "mapped    4 KiB: ",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    // Debug output of types must not leak into the text.
    for damaged in
        [&[0x28, 0xb5, 0x2f, 0xfd, 0, 1, 2, 3][..], b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        let output = slat_with(&["-t", "-"], damaged);
        let said = text(&output.stderr);
        assert!(said.starts_with("slat: standard input: broken zstd data: "), "{said}");
        assert!(!said.contains(['{', '(', '"']) && !said.contains("::"), "{said}");
    }
}

#[test]
fn quiet_is_understood_before_and_after_a_subcommand() {
    for args in [&["-q", "plan"][..], &["plan", "--quiet"], &["top", "/nowhere", "-q"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_slat")).args(args).output().unwrap();
        assert!(!text(&output.stderr).contains("unexpected argument"), "{args:?}");
    }
}
