//! Which price list: the assumed one of a server, one of a file, or what this machine shows now.

use crate::calibrate;
use crate::cost_sheet::{LONGEST_FILE, Sheet};
use slat_cli::error::Error;
use slat_machine::costs::Costs;
use std::fs::File;
use std::io::Read;

/// The costs that `--costs` names.
pub fn named(name: &str) -> Result<Sheet, Error> {
    match name {
        "server" => Ok(Sheet::assumed(Costs::SERVER)),
        "here" => calibrate::measure(11),
        file => read(file),
    }
}

fn read(name: &str) -> Result<Sheet, Error> {
    let shown = name.escape_debug();
    let cannot = |error| Error::Usage(format!("--costs {shown}: {error}"));
    let mut text = String::new();
    // No more than tells that it is too long: it may be a device that never ends.
    File::open(name)
        .and_then(|file| file.take(LONGEST_FILE as u64).read_to_string(&mut text))
        .map_err(|error| cannot(error.to_string()))?;
    Sheet::parse(&text).map_err(|error| cannot(error.to_string()))
}
