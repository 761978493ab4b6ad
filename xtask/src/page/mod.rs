//! `page`: a report as people see it, in a real browser. Makes a quick report, or takes the folder of one that is there.
//!
//! ```text
//! index.html ──▶ host page: an iframe of 400 or 1400 pixels, and check.js ──chromium──▶ DOM ──▶ findings
//!                                     light and dark                  └──▶ what its console said
//! ```
//! Windows have a least width, so the page is in an iframe of the width that is wanted. It is there by `srcdoc`, which makes
//! it of the same origin as the checks. Without Chromium it is skipped in one line; where `SLAT_REQUIRE_CHROMIUM=1` is set,
//! as CI does, a skip is a failure.

use crate::Outcome;
use crate::emulator::{find, or_skipped};
use crate::process::{bounded, emptied, said};
use anyhow::{Context as _, Result, ensure};
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
/// What is looked for: plots that are there, nothing that sticks out or overlaps, text that can be read.
const CHECKS: &str = include_str!("check.js");
/// A plot as it should be; then, each after a comment, what is wrong with a page and what the checks have to say then: if they
/// do not find that, they find nothing.
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

/// Each fault is found, and a page without one is not blamed.
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

/// Makes a quick report, and says where it is. Checks of benches that do not hold are the benches' business.
fn report() -> Result<PathBuf> {
    let folder = PathBuf::from("target/page/report");
    let mut cargo = bounded(900, env!("CARGO"));
    cargo.args("run --profile bench --locked --quiet --package slat-bench -- report --quick".split(' '));
    let status = cargo.arg("--output").arg(&folder).status()?;
    ensure!(matches!(status.code(), Some(0 | 1)), "slat report: {status}");
    Ok(folder)
}

/// Seconds for one look.
const BOUND: u32 = 120;
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --hide-scrollbars
    --disable-background-networking --disable-component-update --enable-logging=stderr --virtual-time-budget=10000 --dump-dom";

/// Headless Chromium: one page at a time, with a bound on its time.
struct Browser {
    chromium: PathBuf,
    /// For what it needs.
    folder: PathBuf,
}

/// What the reader prefers, as media queries call it.
const SCHEMES: [&str; 2] = ["light", "dark"];

/// What the checks saw, as `check.js` writes it.
#[derive(Debug, serde::Deserialize)]
struct Seen {
    plots: u64,
    texts: u64,
    /// What is wrong, a line each.
    findings: Vec<String>,
}

impl Browser {
    /// Looks at a page in a window of so many pixels.
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

/// The page in an iframe, and the checks beside it.
fn host_page(page: &str, width: u32, scheme: &str) -> String {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><style>body{{margin:0}}iframe{{border:0}}</style>\n\
         <pre id=\"seen\"></pre>\n\
         <script>const SCHEME = \"{scheme}\";\n{CHECKS}</script>\n\
         <iframe onload=\"check(this)\" style=\"width:{width}px;height:900px\" srcdoc=\"{escaped}\"></iframe>\n"
    )
}

/// What the checks wrote into the page, as JSON; nothing where they did not come to their end.
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
    fn what_the_checks_saw_is_read() {
        let dom = |text: &str| format!("<html><pre id=\"seen\">{text}</pre><script>…</script></html>");
        let json = r#"{"plots":3,"texts":20,"findings":["a &lt;p&gt; of \"&amp;lt;\"","empty plot"]}"#;
        let seen = read(&dom(json)).unwrap();
        assert_eq!((seen.plots, seen.texts), (3, 20));
        assert_eq!(seen.findings, ["a <p> of \"&lt;\"", "empty plot"]);
        assert!(read(&dom("")).is_none() && read("<html></html>").is_none() && read(&dom("{}")).is_none());
    }
}
