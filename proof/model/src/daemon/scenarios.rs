//! The scenarios. At the start the daemon serves version 1 on both sockets, and has no guest.

use super::Kind::{Honest, Hostile};
use super::Op::{Drain, Reload, Remove, Upload};
use super::{Daemon, SOCKETS};
use crate::scenario::Family;

const _: () = assert!(SOCKETS == 2);

/// Returns all scenarios.
pub fn families() -> Vec<Family<Daemon>> {
    let two = &[(0, Honest), (0, Honest)];
    let scenarios = vec![
        Daemon::new("two guests | kill of the worker, twice", two, &[]).kills(2, 0),
        Daemon::new("two guests | kill of the keeper, twice", two, &[]).kills(0, 2),
        Daemon::new("two guests | kill of both in turn", two, &[]).kills(1, 1),
        Daemon::new("a burst: two guests, hostile", &[(0, Honest), (0, Hostile), (0, Honest)], &[]),
        Daemon::new("upload, reload | guest | kill of the worker", &[(0, Honest)], &[Upload, Reload(0)])
            .kills(1, 0),
        Daemon::new("upload, reload | guest | kill of both", &[(0, Honest)], &[Upload, Reload(0)])
            .kills(1, 1),
        Daemon::new(
            "guests of two templates, one wedged | kill of the worker",
            &[(0, Honest), (1, Honest)],
            &[],
        )
        .wedged(1)
        .kills(1, 0),
        Daemon::new("guest of a wedged template dies | drain | kill of the worker", &[(1, Honest)], &[Drain])
            .wedged(1)
            .dies()
            .kills(1, 0),
        Daemon::new("drain | guest | kill of both", &[(0, Honest)], &[Drain]).kills(1, 1),
        Daemon::new("remove | two guests | kill of the keeper", two, &[Remove(0)]).kills(0, 1),
        Daemon::new("remove | guest | kill of the keeper | another daemon", &[(0, Honest)], &[Remove(0)])
            .kills(0, 1)
            .beside_another(false),
        Daemon::new(
            "drain | guest | kill of the keeper | another daemon, which replaces",
            &[(0, Honest)],
            &[Drain],
        )
        .kills(0, 1)
        .beside_another(true),
        Daemon::new("session of two guests | kill of both", two, &[]).session(0).kills(1, 1),
    ];
    vec![Family { name: "daemon", scenarios }]
}

/// Returns further scenarios for longer runs.
pub fn large_families() -> Vec<Family<Daemon>> {
    let (two, three) = (&[(0, Honest), (0, Honest)], &[(0, Honest), (1, Honest), (0, Hostile)]);
    let scenarios = vec![
        Daemon::new("upload, reload | two guests | kill of the worker", two, &[Upload, Reload(0)])
            .kills(1, 0),
        Daemon::new("drain | two guests | kill of the keeper", two, &[Drain]).kills(0, 1),
        Daemon::new("two guests, hostile | kill of the worker", three, &[]).kills(1, 0),
        Daemon::new("two guests, hostile | kill of the keeper", three, &[]).kills(0, 1),
        Daemon::new("remove | guest | kill of both | another daemon", &[(0, Honest)], &[Remove(0)])
            .kills(1, 1)
            .beside_another(false),
    ];
    vec![Family { name: "daemon, large", scenarios }]
}
