//! The scenarios. At the start template 0 has content 0, and template 1 has content 1.

use super::Fleet;
use super::Op::{Close, Collect, Open, Remove, Upload};
use crate::scenario::Family;

/// Returns all scenarios.
pub fn families() -> Vec<Family<Fleet>> {
    let upload = |template, content| Upload { template, content };
    let scenarios = vec![
        Fleet::new("upload | remove | collect", &[&[upload(1, 0)], &[Remove(0)], &[Collect]]),
        Fleet::new(
            "upload | remove, collect | collect",
            &[&[upload(1, 0)], &[Remove(0), Collect], &[Collect]],
        ),
        Fleet::new("upload | upload | collect", &[&[upload(0, 1)], &[upload(1, 0)], &[Collect]]),
        Fleet::new(
            "upload, upload | remove | collect",
            &[&[upload(1, 2), upload(0, 2)], &[Remove(1)], &[Collect]],
        ),
        Fleet::new("open, close | remove | collect", &[&[Open(0), Close], &[Remove(0)], &[Collect]]),
        Fleet::new(
            "open, close | upload in its place | collect",
            &[&[Open(0), Close], &[upload(0, 2)], &[Collect]],
        ),
        Fleet::new(
            "open, close | remove, upload of it | collect",
            &[&[Open(1), Close], &[Remove(0), upload(1, 0)], &[Collect]],
        ),
        Fleet::new(
            "open, close | upload of it | upload of it",
            &[&[Open(1), Close], &[upload(1, 2)], &[upload(1, 2)]],
        ),
        Fleet::new("in time: open, close | remove, collect", &[&[Open(0), Close], &[Remove(0), Collect]])
            .in_time(),
        Fleet::new(
            "stalled: upload | remove, upload of it | collect",
            &[&[upload(1, 0)], &[Remove(0), upload(0, 0)], &[Collect]],
        )
        .stalling(&[0]),
        Fleet::new(
            "stalled: open, close, open, close | remove | collect",
            &[&[Open(0), Close, Open(1), Close], &[Remove(1)], &[Collect]],
        )
        .stalling(&[0]),
        Fleet::new("stalled: upload | collect", &[&[upload(1, 0)], &[Collect]]).stalling(&[0]),
        Fleet::new(
            "stalled: upload | collect that stalls | remove",
            &[&[upload(1, 0)], &[Collect], &[Remove(0)]],
        )
        .stalling(&[0, 1]),
    ];
    vec![Family { name: "fleet", scenarios }]
}

/// Returns further scenarios for longer runs.
pub fn large_families() -> Vec<Family<Fleet>> {
    let upload = Upload { template: 1, content: 0 };
    let name = "stalled: upload | collect | remove, collect";
    let scenario = Fleet::new(name, &[&[upload], &[Collect], &[Remove(0), Collect]]).stalling(&[0]);
    vec![Family { name: "fleet, large", scenarios: vec![scenario] }]
}
