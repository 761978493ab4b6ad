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
//! | `controls.html` | negative controls: what makes a page bad. If the checks do not find it, they find nothing |
//!
//! Without Chromium it is skipped in one line; where `SLAT_REQUIRE_CHROMIUM=1` is set, as CI does, a skip is a failure.

mod browser;

use crate::Outcome;
use crate::emulator::{find, skip};
use crate::process::bounded;
use browser::{Browser, SCHEMES};
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// Set where nothing may be skipped.
const REQUIRED: &str = "SLAT_REQUIRE_CHROMIUM";
/// Widths of a telephone and of a desk.
const WIDTHS: [u32; 2] = [400, 1400];
/// What the browser must find on a report at least.
const PLOTS: u64 = 10;
/// The most that a page may have.
const BYTES: usize = 3 << 20;
/// A plot as it should be; then, each after a comment, what is wrong with a page and what the checks have to say then.
const CONTROLS: &str = include_str!("controls.html");

#[derive(clap::Args)]
pub struct Args {
    /// The folder of a report; without, a quick one is made
    #[arg(value_name = "DIR", value_parser = |folder: &str| std::path::absolute(folder))]
    report: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let chromium = match find("chromium", "chromium") {
        Ok(chromium) => chromium,
        Err(missing) => return skip(&missing, REQUIRED),
    };
    let browser = Browser::new(chromium, std::path::absolute("target/page")?)?;
    controls(&browser)?;
    let path = args.report.clone().map_or_else(report, Ok)?.join("index.html");
    let page = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if page.len() > BYTES {
        return Err(format!("the page has {} bytes: {BYTES} at most", page.len()).into());
    }
    let mut wrong = 0;
    for (width, scheme) in WIDTHS.into_iter().flat_map(|width| SCHEMES.map(|scheme| (width, scheme))) {
        let seen = browser.look(&page, width, scheme)?;
        let (name, found) = (scheme.name, seen.findings.len());
        println!("{width} pixels, {name}: {} plots, {} texts, {found} findings", seen.plots, seen.texts);
        seen.findings.iter().for_each(|finding| println!("  {finding}"));
        wrong += found;
        if seen.plots < PLOTS {
            return Err(format!("{} plots: {PLOTS} at least", seen.plots).into());
        }
    }
    if wrong > 0 { Err(format!("{wrong} findings").into()) } else { Ok(()) }
}

/// Each fault is found, and a page without one is not blamed.
fn controls(browser: &Browser) -> Outcome {
    let mut parts = CONTROLS.split("\n<!-- ");
    let good = parts.next().unwrap_or_default();
    let look = |fault: &str| {
        let page = format!("<!doctype html><html><body><main>{good}<p>text</p>{fault}</main></body></html>");
        browser.look(&page, WIDTHS[0], SCHEMES[0])
    };
    let right = look("")?;
    if !right.findings.is_empty() || right.plots != 1 {
        return Err(format!("a page that is right is blamed: {right:?}").into());
    }
    let mut found = 0;
    for part in parts {
        let parts = part.split_once(" -->\n").and_then(|(head, fault)| Some((head.split_once(": ")?, fault)));
        let ((name, expected), fault) = parts.ok_or("controls.html: not `name: finding`")?;
        let findings = look(fault)?.findings;
        if !findings.iter().any(|finding| finding.contains(expected)) {
            return Err(format!("control: {name} was not found: {findings:?}").into());
        }
        found += 1;
    }
    println!("{found} faults made on purpose are found");
    Ok(())
}

/// Makes a quick report, and says where it is. Checks of benches that do not hold are the benches' business: the page shows
/// them.
fn report() -> Result<PathBuf, Box<dyn Error>> {
    let folder = PathBuf::from("target/page/report");
    let mut cargo = bounded(900, env!("CARGO"));
    cargo.args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "slat-cli",
        "--",
        "report",
        "--quick",
    ]);
    let status = cargo.arg("--output").arg(&folder).status()?;
    match status.code() {
        Some(0 | 1) => Ok(folder),
        _ => Err(format!("slat report: {status}").into()),
    }
}
