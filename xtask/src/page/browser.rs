//! Headless Chromium: loads a page, lets the checks look at it, and hands back what they found.
//!
//! Windows have a least width, so the page is in an iframe of the width that is wanted. It is there by `srcdoc`, which makes
//! it of the same origin as the checks.

use crate::process::{bounded, said};
use serde_json::Value;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

const CHECKS: &str = include_str!("check.js");

/// Seconds for one look.
const BOUND: u32 = 120;

pub struct Browser {
    chromium: PathBuf,
    folder: PathBuf,
}

/// What the reader prefers.
#[derive(Clone, Copy)]
pub struct Scheme {
    /// As media queries call it.
    pub name: &'static str,
    /// As Chromium's settings do.
    setting: &'static str,
}

pub const SCHEMES: [Scheme; 2] = [
    Scheme { name: "light", setting: "--blink-settings=preferredColorScheme=1" },
    Scheme { name: "dark", setting: "--blink-settings=preferredColorScheme=0" },
];

#[derive(Debug)]
pub struct Seen {
    pub plots: u64,
    pub texts: u64,
    /// What is wrong, a line each.
    pub findings: Vec<String>,
}

impl Browser {
    /// A browser that keeps what it needs in this folder, which is emptied of what an earlier one left.
    pub fn new(chromium: PathBuf, folder: PathBuf) -> Result<Self, Box<dyn Error>> {
        let profile = folder.join("profile");
        if profile.exists() {
            fs::remove_dir_all(&profile)?;
        }
        fs::create_dir_all(&profile)?;
        Ok(Self { chromium, folder })
    }

    /// Looks at a page in a window of so many pixels.
    pub fn look(&self, page: &str, width: u32, scheme: Scheme) -> Result<Seen, Box<dyn Error>> {
        let host = self.folder.join("host.html");
        fs::write(&host, host_page(page, width, scheme))?;
        let mut chromium = bounded(BOUND, &self.chromium);
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
        chromium.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        chromium.args(["--enable-logging=stderr", "--hide-scrollbars", scheme.setting]);
        chromium.arg(format!("--user-data-dir={}", self.folder.join("profile").display()));
        chromium.arg(format!("--window-size={},1000", width.max(500) + 100));
        chromium.args(["--virtual-time-budget=10000", "--dump-dom"]);
        let said = said(chromium.arg(format!("file://{}", host.display())))?;
        let mut seen = read(&said.out)
            .ok_or_else(|| format!("the checks did not come to their end: {}\n{}", said.status, said.err))?;
        let console = said.err.lines().filter(|line| line.contains(":CONSOLE"));
        seen.findings.extend(console.map(|line| format!("the console says: {line}")));
        Ok(seen)
    }
}

/// The page in an iframe, and the checks beside it.
fn host_page(page: &str, width: u32, scheme: Scheme) -> String {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><style>body{{margin:0}}iframe{{border:0}}</style>\n\
         <pre id=\"seen\"></pre>\n\
         <script>const SCHEME = \"{scheme}\";\n{CHECKS}</script>\n\
         <iframe onload=\"check(this)\" style=\"width:{width}px;height:900px\" srcdoc=\"{escaped}\"></iframe>\n",
        scheme = scheme.name
    )
}

/// What the checks wrote into the page, as JSON; nothing where they did not come to their end.
fn read(dom: &str) -> Option<Seen> {
    let (_, rest) = dom.split_once("<pre id=\"seen\">")?;
    let (text, _) = rest.split_once("</pre>")?;
    let text =
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&text).ok()?;
    let findings = seen["findings"].as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Some(Seen { plots: seen["plots"].as_u64()?, texts: seen["texts"].as_u64()?, findings })
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

    #[test]
    fn a_page_in_an_iframe_is_still_itself() {
        let host = host_page("<p title=\"a & b\">", 400, SCHEMES[1]);
        assert!(
            host.contains("srcdoc=\"<p title=&quot;a &amp; b&quot;>\"") && host.contains("SCHEME = \"dark\"")
        );
    }
}
