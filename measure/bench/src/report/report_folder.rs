//! The folder of a report. Whether it can be written is tried before anything is measured.

use crate::report::page_html;
use crate::report::page_markdown;
use crate::report::page_model::Block;
use crate::report::page_sections;
use crate::report::plot;
use crate::report::report_data::Data;
use slat_cli::error::Error;
use slat_cli::temporary::write_whole;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// See the module's header.
#[derive(Debug)]
pub struct Folder(PathBuf);

const PAGE: &str = "index.html";
const MARKDOWN: &str = "report.md";
const DATA: &str = "data.json";

impl Folder {
    /// Makes it, if it is not there, and tries whether files can be made in it.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let tried = || {
            fs::create_dir_all(path)?;
            let probe = path.join(".slat-report");
            fs::write(&probe, "")?;
            fs::remove_file(probe)?;
            match [PAGE, MARKDOWN, DATA].into_iter().find(|name| path.join(name).is_dir()) {
                Some(name) => Err(io::Error::other(format!("{name} is a folder"))),
                None => Ok(Self(path.to_owned())),
            }
        };
        tried().map_err(|error| Error::Usage(format!("--output {}: {error}", path.display())))
    }

    /// Writes all of it, and says where the page is.
    pub fn write(&self, data: &Data) -> Result<PathBuf, Error> {
        let doc = page_sections::doc(data);
        for block in doc.sections.iter().flat_map(|section| &section.blocks) {
            let Block::Plots(plots) = block else { continue };
            for one in plots {
                self.file(&format!("{}.svg", one.id), &plot::file(&one.svg))?;
            }
        }
        let json = serde_json::to_string(data).map_err(io::Error::from)?;
        self.file(DATA, &json)?;
        self.file(MARKDOWN, &page_markdown::page(&doc))?;
        self.file(PAGE, &page_html::page(&doc))?;
        Ok(self.0.join(PAGE))
    }

    fn file(&self, name: &str, text: &str) -> io::Result<()> {
        write_whole(&self.0.join(name), text.as_bytes())
    }
}
