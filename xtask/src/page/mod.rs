//! `page`: a report as people see it, in a real browser. Makes a quick report, or takes the folder of one that is there.
//!
//! ```text
//! index.html ──▶ host page: an iframe of 400 or 1400 pixels, and check.js ──chromium──▶ DOM ──▶ findings
//!                                     light and dark                  └──▶ what its console said
//! ```
//! | file | idea |
//! |---|---|
//! | `check.js` | what is looked for: plots that are there, nothing that sticks out or overlaps, text that can be read |
//! | `browser` | headless Chromium: one page, with a bound on its time |
//! | `controls` | pages with one fault each, which must be found |
//!
//! Without Chromium it is skipped in one line; where `SLAT_REQUIRE_CHROMIUM=1` is set, as CI does, a skip is a failure.

mod browser;
mod controls;

use crate::Outcome;
use crate::emulator::{find, skip};
use browser::{Browser, Look, Scheme};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set where nothing may be skipped.
const REQUIRED: &str = "SLAT_REQUIRE_CHROMIUM";

/// Widths of a telephone and of a desk.
const WIDTHS: [u32; 2] = [400, 1400];

/// What the browser must find on a report at least.
const PLOTS: u64 = 10;

/// The most that a page may have.
const BYTES: u64 = 3 << 20;

/// The chore.
pub fn run(root: &Path, arguments: &[String]) -> Outcome {
    let chromium = match find("chromium", "chromium") {
        Ok(chromium) => chromium,
        Err(missing) => return skip(&missing, REQUIRED),
    };
    let folder = root.join("target/page");
    let browser = Browser::new(&chromium, &folder)?;
    controls::check(&browser)?;
    let report = match arguments {
        [] => report(root)?,
        [there] => PathBuf::from(there),
        [_, extra, ..] => return Err(format!("one folder, not {extra} too").into()),
    };
    let path = report.join("index.html");
    let page = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if page.len() as u64 > BYTES {
        return Err(format!("the page has {} bytes: {BYTES} at most", page.len()).into());
    }
    let mut wrong = 0;
    for (width, scheme) in WIDTHS.into_iter().flat_map(|width| Scheme::BOTH.map(|scheme| (width, scheme))) {
        let seen = browser.look(&page, Look { width, scheme })?;
        println!(
            "{width} pixels, {}: {} plots, {} texts, {} findings",
            scheme.name(),
            seen.plots,
            seen.texts,
            seen.findings.len()
        );
        seen.findings.iter().for_each(|finding| println!("  {finding}"));
        wrong += seen.findings.len();
        if seen.plots < PLOTS {
            return Err(format!("{} plots: {PLOTS} at least", seen.plots).into());
        }
    }
    if wrong > 0 { Err(format!("{wrong} findings").into()) } else { Ok(()) }
}

/// Makes a quick report, and says where it is. Checks of benches that do not hold are the benches' business: the page shows
/// them.
fn report(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let folder = root.join("target/page/report");
    let status = Command::new("timeout")
        .args([
            "--kill-after=5",
            "900",
            env!("CARGO"),
            "run",
            "--profile",
            "bench",
            "--locked",
            "--quiet",
            "--package",
            "slat-bench",
            "--",
            "report",
            "--quick",
        ])
        .arg("--output")
        .arg(&folder)
        .current_dir(root)
        .status()?;
    match status.code() {
        Some(0 | 1) => Ok(folder),
        _ => Err(format!("slat report: {status}").into()),
    }
}
