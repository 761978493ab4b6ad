//! Every byte that a guest sees is right: beside a balloon, on shared memory, with a store that is slow and fails.

use crate::daemon::{Daemon, is_offered, library, with_template};
use slat_pager::Source;
use std::os::unix::process::ExitStatusExt;

const SLOW: &str = "--cache 0 --store-delay-ms 3";

#[test]
fn guests_beside_balloons_see_every_byte_right() {
    let Some(daemon) = Daemon::start("balloon", "--cache 2M") else { return };
    let twins = [1, 2].map(|seed| daemon.twin(&format!("--millis 500 --balloon --seed {seed}")));
    for twin in twins {
        let report = twin.report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
        let stats = daemon.stats();
        assert!(
            stats.removes > 0 && stats.faults(Source::Zero) > 0 && stats.faults(Source::Store) > 0,
            "{stats:?}"
        );
        assert!(
            stats.filled > stats.faults(Source::Store) + stats.faults(Source::Cache),
            "no neighbours came along"
        );
    }
}

#[test]
fn guests_that_end_leak_no_descriptor() {
    let Some(daemon) = Daemon::start("leak", "") else { return };
    let open = || {
        let names = std::fs::read_dir(format!("/proc/{}/fd", daemon.worker)).unwrap();
        let opened = names.filter_map(|name| std::fs::read_link(name.unwrap().path()).ok());
        let mut opened: Vec<_> = opened.collect();
        opened.sort();
        opened
    };
    let before = open();
    for seed in 0..3 {
        assert!(daemon.twin(&format!("--millis 30 --balloon --seed {seed}")).report().is_right());
        assert!(daemon.stats().filled > 0);
    }
    // The last thread of a guest may still be ending.
    let is_back = (0..400).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        open() == before
    });
    assert!(is_back, "{before:?} became {:?}", open());
}

#[test]
fn an_image_is_served_by_the_command_line_of_the_example_handlers() {
    let Some(mut daemon) = Daemon::of_image("image") else { return };
    let twin = daemon.twin("--millis 400 --balloon --patience-ms 10000");
    std::thread::sleep(std::time::Duration::from_millis(100));
    daemon.kill();
    let report = twin.report();
    assert!(report.is_right(), "{report:?}");
}

#[test]
fn shared_memory_is_continued_and_removed_pages_of_it_are_zero() {
    let Some(daemon) = Daemon::start("shared", "--cache 2M") else { return };
    // Chance decides whether a page is given back, stays, and is touched again; on a busy machine it is less likely.
    let is_seen = (0..10).any(|seed| {
        let report = daemon.twin(&format!("--millis 500 --balloon --shared --seed {seed}")).report();
        assert!(report.is_right() && report.removed > 0, "{report:?}");
        let stats = daemon.stats();
        stats.faults(Source::Shared) > 0 && stats.faults(Source::Zero) > 0
    });
    assert!(is_seen, "no page was continued");
}

#[test]
fn a_store_that_is_slow_and_fails_delays_and_harms_nothing() {
    let Some(daemon) = Daemon::start("trouble", &format!("{SLOW} --store-errors-percent 20")) else { return };
    let report = daemon.twin("--millis 300 --balloon --vcpus 3").report();
    assert!(report.is_right(), "{report:?}");
    assert!(daemon.stats().again > 0);
}

/// Swaps two chunks: each is a valid chunk under the wrong name.
fn damaged(name: &str, flags: &str) -> Option<Daemon> {
    is_offered().then(|| {
        let folder = with_template(name);
        let library = library(&folder);
        let template = library.open("twin").unwrap();
        let names: Vec<_> = template
            .chunks()
            .iter()
            .flatten()
            .take(2)
            .map(|hash| folder.join("store").join(hash.key()))
            .collect();
        let contents: Vec<_> = names.iter().map(|name| std::fs::read(name).unwrap()).collect();
        std::fs::write(&names[0], &contents[1]).unwrap();
        std::fs::write(&names[1], &contents[0]).unwrap();
        drop(template);
        assert_eq!(library.verify("twin").unwrap().damaged.len(), 2);
        Daemon::in_folder(folder, flags)
    })
}

#[test]
fn a_damaged_chunk_is_never_served() {
    let Some(daemon) = damaged("damaged", "") else { return };
    let report = daemon.twin("--millis 100 --patience-ms 600").report();
    assert!(report.frozen && report.wrong == 0, "it waits: {report:?}");
}

#[test]
fn a_damaged_chunk_is_a_memory_error_where_that_is_wanted() {
    let Some(daemon) = damaged("poison", "--lost poison") else { return };
    let (status, _) = daemon.twin("--millis 100").end();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    assert!(daemon.stats().poisoned > 0);
}
