//! `page`: checks a report in a real browser. Makes a quick report, or takes the folder of an existing one.
//!
//! ```text
//! index.html ──▶ host page: an iframe of 400, 800 or 1280 pixels, and check.js ──chromium──▶ DOM ──▶ findings
//!                                     light and dark                  └──▶ what its console said
//! ```
//! Windows have a least width, so the page is in an iframe of the wanted width. The iframe uses `srcdoc`, so that it
//! has the same origin as the checks. Without Chromium the chore is skipped with one line; if `SLAT_REQUIRE_CHROMIUM=1`
//! is set, as CI does, a skip is a failure.

use crate::emulator::{find, or_skipped};
use crate::outcome::Outcome;
use crate::process::{bounded, emptied, said};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::PathBuf;

/// Variable that forbids skips.
const REQUIRED: &str = "SLAT_REQUIRE_CHROMIUM";
/// Widths of a telephone, of half a screen, and of a laptop's.
const WIDTHS: [u32; 3] = [400, 800, 1280];
/// Least number of plots on a report.
const PLOTS: u64 = 10;
/// Most bytes of a page.
const BYTES: usize = 3 << 20;
/// The checks: plots are present, nothing sticks out or overlaps, and text is readable.
const CHECKS: &str = include_str!("check.js");
/// The controls: a correct plot; then faults of a page, each after a comment with the expected finding.
const CONTROLS: &str = include_str!("controls.html");

#[derive(clap::Args)]
pub struct Args {
    /// The folder of a report; without, a quick one is made
    #[arg(value_name = "DIR", value_parser = |folder: &str| std::path::absolute(folder))]
    report: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    or_skipped(look(args), REQUIRED)
}

fn look(args: &Args) -> Outcome {
    let chromium = find("chromium", "chromium")?;
    let browser = Browser { chromium, folder: std::path::absolute("target/page")? };
    emptied(&browser.folder.join("profile"))?;
    controls(&browser)?;
    let path = args.report.clone().map_or_else(report, Ok)?.join("index.html");
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    ensure!(page.len() <= BYTES, "the page has {} bytes: {BYTES} at most", page.len());
    let mut wrong = 0;
    for (width, scheme) in WIDTHS.into_iter().flat_map(|width| SCHEMES.map(|scheme| (width, scheme))) {
        let seen = browser.look(&page, width, scheme)?;
        let found = seen.findings.len();
        println!("{width} pixels, {scheme}: {} plots, {} texts, {found} findings", seen.plots, seen.texts);
        seen.findings.iter().for_each(|finding| println!("  {finding}"));
        wrong += found;
        ensure!(seen.plots >= PLOTS, "{} plots: {PLOTS} at least", seen.plots);
    }
    ensure!(wrong == 0, "{wrong} findings");
    Ok(())
}

/// Checks that each fault is found, and that a correct page has no finding.
fn controls(browser: &Browser) -> Outcome {
    let mut parts = CONTROLS.split("\n<!-- ");
    let good = parts.next().unwrap_or_default();
    let look = |fault: &str| {
        let page = format!("<!doctype html><html><body><main>{good}<p>text</p>{fault}</main></body></html>");
        browser.look(&page, WIDTHS[0], SCHEMES[0])
    };
    let right = look("")?;
    ensure!(right.findings.is_empty() && right.plots == 1, "a page that is right is blamed: {right:?}");
    let mut found = 0;
    for part in parts {
        let parts = part.split_once(" -->\n").and_then(|(head, fault)| Some((head.split_once(": ")?, fault)));
        let ((name, expected), fault) = parts.context("controls.html: not `name: finding`")?;
        let findings = look(fault)?.findings;
        let is_found = findings.iter().any(|finding| finding.contains(expected));
        ensure!(is_found, "control: {name} was not found: {findings:?}");
        found += 1;
    }
    println!("{found} faults made on purpose are found");
    Ok(())
}

/// Makes a quick report, and returns its folder. Ignores failed checks of benches.
fn report() -> Result<PathBuf> {
    let folder = PathBuf::from("target/page/report");
    let mut cargo = bounded(900, env!("CARGO"));
    cargo.args("run --profile bench --locked --quiet --package slat-bench -- report --quick".split(' '));
    let status = cargo.arg("--output").arg(&folder).status()?;
    ensure!(matches!(status.code(), Some(0 | 1)), "slat report: {status}");
    Ok(folder)
}

/// Time limit of one check, in seconds.
const BOUND: u32 = 120;
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --hide-scrollbars
    --disable-background-networking --disable-component-update --enable-logging=stderr --virtual-time-budget=10000 --dump-dom";

/// Headless Chromium: one page at a time, with a time limit.
struct Browser {
    chromium: PathBuf,
    /// Folder for its files.
    folder: PathBuf,
}

/// Colour schemes of media queries.
const SCHEMES: [&str; 2] = ["light", "dark"];

/// Result of the checks, as `check.js` writes it.
#[derive(Debug, serde::Deserialize)]
struct Seen {
    plots: u64,
    texts: u64,
    /// Findings, one line each.
    findings: Vec<String>,
}

impl Browser {
    /// Checks a page in a window of `width` pixels.
    fn look(&self, page: &str, width: u32, scheme: &str) -> Result<Seen> {
        let host = self.folder.join("host.html");
        fs::write(&host, host_page(page, width, scheme))?;
        let mut chromium = bounded(BOUND, &self.chromium);
        chromium.args(FLAGS.split_whitespace());
        chromium.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(scheme == "light")));
        chromium.arg(format!("--user-data-dir={}", self.folder.join("profile").display()));
        chromium.arg(format!("--window-size={},1000", width.max(500) + 100));
        let said = said(chromium.arg(format!("file://{}", host.display())))?;
        let end = || format!("the checks did not come to their end: {}\n{}", said.status, said.err);
        let mut seen = read(&said.out).with_context(end)?;
        let console = said.err.lines().filter(|line| line.contains(":CONSOLE"));
        seen.findings.extend(console.map(|line| format!("the console says: {line}")));
        Ok(seen)
    }
}

/// Returns a page with the report in an iframe, and the checks beside it.
fn host_page(page: &str, width: u32, scheme: &str) -> String {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><style>body{{margin:0}}iframe{{border:0}}</style>\n\
         <pre id=\"seen\"></pre>\n\
         <script>const SCHEME = \"{scheme}\";\n{CHECKS}</script>\n\
         <iframe onload=\"check(this)\" style=\"width:{width}px;height:900px\" srcdoc=\"{escaped}\"></iframe>\n"
    )
}

/// Parses the JSON that the checks wrote into the page; `None` if they did not finish.
fn read(dom: &str) -> Option<Seen> {
    let (_, rest) = dom.split_once("<pre id=\"seen\">")?;
    let (dom, _) = rest.split_once("</pre>")?;
    let text =
        dom.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_page_check_are_read() {
        let dom = |text: &str| format!("<html><pre id=\"seen\">{text}</pre><script>…</script></html>");
        let json = r#"{"plots":3,"texts":20,"findings":["a &lt;p&gt; of \"&amp;lt;\"","empty plot"]}"#;
        let seen = read(&dom(json)).unwrap();
        assert_eq!((seen.plots, seen.texts), (3, 20));
        assert_eq!(seen.findings, ["a <p> of \"&lt;\"", "empty plot"]);
        assert!(read(&dom("")).is_none() && read("<html></html>").is_none() && read(&dom("{}")).is_none());
    }
}
