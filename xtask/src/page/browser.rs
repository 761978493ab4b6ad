//! Headless Chromium: loads a page, lets the checks look at it, and hands back what they found.
//!
//! Windows have a least width, so the page is in an iframe of the width that is wanted. It is there by `srcdoc`, which makes
//! it of the same origin as the checks.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CHECKS: &str = include_str!("check.js");

/// Seconds for one look.
const BOUND: &str = "120";

/// See the module's header.
pub struct Browser {
    chromium: PathBuf,
    folder: PathBuf,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Of the window, in pixels.
    pub width: u32,
    pub scheme: Scheme,
}

/// What the reader prefers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub const BOTH: [Self; 2] = [Self::Light, Self::Dark];

    /// As media queries call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// As Chromium's settings do.
    fn setting(self) -> &'static str {
        match self {
            Self::Light => "--blink-settings=preferredColorScheme=1",
            Self::Dark => "--blink-settings=preferredColorScheme=0",
        }
    }
}

/// What was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub plots: u64,
    pub texts: u64,
    /// What is wrong, a line each.
    pub findings: Vec<String>,
}

impl Browser {
    /// A browser that keeps what it needs in this folder, which is emptied of what an earlier one left.
    pub fn new(chromium: &Path, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let profile = folder.join("profile");
        if profile.exists() {
            fs::remove_dir_all(&profile)?;
        }
        fs::create_dir_all(&profile)?;
        Ok(Self { chromium: chromium.to_owned(), folder: folder.to_owned() })
    }

    /// Looks at a page.
    pub fn look(&self, page: &str, look: Look) -> Result<Seen, Box<dyn Error>> {
        let host = self.folder.join("host.html");
        fs::write(&host, host_page(page, look))?;
        let output = Command::new("timeout")
            .args(["--kill-after=5", BOUND])
            .arg(&self.chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--enable-logging=stderr", "--hide-scrollbars", look.scheme.setting()])
            .arg(format!("--user-data-dir={}", self.folder.join("profile").display()))
            .args([
                &format!("--window-size={},1000", look.width.max(500) + 100),
                "--virtual-time-budget=10000",
                "--dump-dom",
            ])
            .arg(format!("file://{}", host.display()))
            .stdin(Stdio::null())
            .output()?;
        let dom = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        let mut seen = read(&dom)
            .ok_or_else(|| format!("the checks did not come to their end: {}\n{said}", output.status))?;
        let console = said.lines().filter(|line| line.contains(":CONSOLE"));
        seen.findings.extend(console.map(|line| format!("the console says: {line}")));
        Ok(seen)
    }
}

/// The page in an iframe, and the checks beside it.
fn host_page(page: &str, look: Look) -> String {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let Look { width, scheme } = look;
    format!(
        "<!doctype html><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><style>body{{margin:0}}iframe{{border:0}}</style>\n\
         <pre id=\"findings\"></pre>\n\
         <script>const SCHEME = \"{scheme}\";\n{CHECKS}</script>\n\
         <iframe onload=\"check(this)\" style=\"width:{width}px;height:900px\" srcdoc=\"{escaped}\"></iframe>\n",
        scheme = scheme.name()
    )
}

/// What the checks wrote into the page: findings, and a last line with what they looked at.
fn read(dom: &str) -> Option<Seen> {
    let (_, rest) = dom.split_once("<pre id=\"findings\">")?;
    let (text, _) = rest.split_once("</pre>")?;
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let (findings, end) = text
        .trim_end()
        .rsplit_once("\nlooked at ")
        .unwrap_or_else(|| ("", text.trim_start_matches("looked at ")));
    let mut counts = end.split(' ').filter_map(|word| word.parse().ok());
    let (plots, texts) = (counts.next()?, counts.next()?);
    let findings = findings.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    Some(Seen { plots, texts, findings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_lines_and_the_last_line_says_that_all_was_looked_at() {
        let dom = |text: &str| format!("<html><pre id=\"findings\">{text}</pre><script>…</script></html>");
        let seen = read(&dom("a &lt;p&gt; sticks out\nempty plot\nlooked at 3 plots and 20 texts")).unwrap();
        assert_eq!((seen.plots, seen.texts), (3, 20));
        assert_eq!(seen.findings, ["a <p> sticks out", "empty plot"]);
        assert_eq!(read(&dom("looked at 3 plots and 20 texts")).unwrap().findings, [""; 0]);
        assert_eq!((read(&dom("")), read("<html></html>"), read(&dom("a finding"))), (None, None, None));
    }

    #[test]
    fn a_page_in_an_iframe_is_still_itself() {
        let host = host_page("<p title=\"a & b\">", Look { width: 400, scheme: Scheme::Dark });
        assert!(
            host.contains("srcdoc=\"<p title=&quot;a &amp; b&quot;>\"") && host.contains("SCHEME = \"dark\"")
        );
    }
}
