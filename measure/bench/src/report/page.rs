//! The files of a report: `data.json`; `index.html`, the page around the same data; and `report.md`, its sentences and claims.
//!
//! The page is `page/`: HTML, CSS and plain JavaScript, put together here. It needs no other file and no network.

use crate::figure_text::with;
use crate::report::report_data::Data;
use crate::report::sections::{Section, sections};
use crate::threads::bench_report::Check;
use serde::Serialize;
use slat_cli::error::Error;
use slat_cli::temporary::write_whole;
use slat_machine::Costs;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The data of the page: everything measured, and what follows from it.
#[derive(Serialize)]
pub struct Page<'d> {
    #[serde(flatten)]
    data: &'d Data,
    pub sections: Vec<Section>,
    /// Of every command.
    pub checks: Vec<(&'d str, Check)>,
    /// Sentences that a reader must not overlook.
    pub alarms: Vec<String>,
    /// The costs of the simulated machine: name, unit, and operation.
    costs: Vec<[&'static str; 3]>,
}

impl<'d> Page<'d> {
    /// The same data make the same page.
    pub fn new(data: &'d Data) -> Self {
        let checks: Vec<_> = data.checks().collect();
        let costs = Costs::FIELDS.iter().map(|field| [field.name, field.unit, field.about]).collect();
        Self { data, sections: sections(data), alarms: alarms(data, &checks), checks, costs }
    }

    /// As `data.json` has it.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The page, with the data in it.
    pub fn html(&self) -> serde_json::Result<String> {
        // In a script element `<` could begin its end.
        let data = self.json()?.replace('<', "\\u003c");
        let parts = [
            ("/* page.css */", include_str!("page/page.css")),
            ("/* figures.js */", include_str!("page/figures.js")),
            ("/* plots.js */", include_str!("page/plots.js")),
            ("/* page.js */", include_str!("page/page.js")),
            ("{\"data\": \"data.json\"}", &data),
        ];
        let page = include_str!("page/page.html").to_owned();
        Ok(parts.into_iter().fold(page, |page, (mark, part)| page.replacen(mark, part, 1)))
    }

    /// The sentences and the claims, for reviews of text.
    pub fn markdown(&self) -> String {
        let Data { slat, machine, quick, .. } = self.data;
        let quick = if *quick { " --quick" } else { "" };
        let mut text = format!("# slat report{quick}\n\nslat {slat}, on {machine}\n");
        let holds = self.checks.iter().filter(|(_, check)| check.ok).count();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{holds} of {} checks hold.\n", self.checks.len());
        for (command, Check { name, detail, .. }) in self.checks.iter().filter(|(_, check)| !check.ok) {
            let _ = writeln!(text, "- `slat {command}`: {name}: {detail}");
        }
        for alarm in &self.alarms {
            let _ = writeln!(text, "> **{alarm}**\n");
        }
        for Section { name, title, sentences, claims, .. } in &self.sections {
            let _ = writeln!(text, "\n## {name}: {title}\n");
            for sentence in sentences.iter().filter(|one| one.plot.is_none()) {
                let _ = writeln!(text, "- {} ({})", sentence.text, name_of(&sentence.from));
            }
            if !claims.is_empty() {
                text += "\n| claim | published | ours | where | verdict | tolerance |\n|---|---|---|---|---|---|\n";
            }
            for claim in claims {
                let [published, ours] = [claim.published, claim.ours].map(|value| with(value, &claim.unit));
                let (what, from, verdict) = (&claim.what, name_of(&claim.from), name_of(&claim.verdict));
                let _ = writeln!(
                    text,
                    "| {what} | {published} | {ours} | {from} | {verdict} | {} |",
                    claim.tolerance
                );
            }
        }
        text
    }
}

/// As JSON has it.
fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .map_or_else(|_| String::new(), |name| name.as_str().unwrap_or_default().to_owned())
}

fn alarms(data: &Data, checks: &[(&str, Check)]) -> Vec<String> {
    let failed = checks.iter().filter(|(_, check)| !check.ok).count();
    let mut alarms = Vec::new();
    if failed > 0 {
        let checks = if failed == 1 { "1 check does" } else { &format!("{failed} checks do") };
        alarms.push(format!("{checks} not hold: the figures of those benches mean nothing. See Checks."));
    }
    if data.interrupted {
        let measured = data.parts.len();
        alarms.push(format!("Interrupted: {measured} parts were measured; the others are missing here."));
    }
    alarms.extend(ratios_without_sides(data));
    alarms
}

/// The simulated ratios that do not name what they divide by what, each in a sentence. No verdict is possible on them.
pub fn ratios_without_sides(data: &Data) -> Vec<String> {
    let ratios = data.sims().flat_map(|sim| &sim.against_series).filter(|one| one.unit == "ratio");
    let unnamed = ratios.filter(|one| one.sides.is_none());
    unnamed.map(|one| format!("A ratio does not name what it divides by what: {}", one.what)).collect()
}

/// The folder of a report. Whether it can be written to is tried before anything is measured.
#[derive(Debug)]
pub struct Folder(PathBuf);

const FILES: [&str; 3] = ["index.html", "report.md", "data.json"];

impl Folder {
    /// Makes it, if it is not there, and tries whether files can be made in it.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let tried = || {
            fs::create_dir_all(path)?;
            let probe = path.join(".slat-report");
            fs::write(&probe, "")?;
            fs::remove_file(probe)?;
            match FILES.into_iter().find(|name| path.join(name).is_dir()) {
                Some(name) => Err(io::Error::other(format!("{name} is a folder"))),
                None => Ok(Self(path.to_owned())),
            }
        };
        tried().map_err(|error| Error::Usage(format!("--output {}: {error}", path.display())))
    }

    /// Writes all of it, and returns the path of the page.
    pub fn write(&self, data: &Data) -> Result<PathBuf, Error> {
        let page = Page::new(data);
        let texts = [page.html(), Ok(page.markdown()), page.json()];
        for (name, text) in FILES.into_iter().zip(texts) {
            write_whole(&self.0.join(name), text.map_err(io::Error::from)?.as_bytes())?;
        }
        Ok(self.0.join(FILES[0]))
    }
}
