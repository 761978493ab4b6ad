//! What is recorded: a compiler and a sort, unlike each other in all that matters to an MMU.
//!
//! | | `cc1` | `sort` |
//! |---|---|---|
//! | code | thousands of pages, jumped about in | a hundred |
//! | data | a heap of small objects, written often | one block of 64 MiB and more, read often |
//! | locality | some, everywhere | none: each comparison looks at two lines anywhere |
//!
//! Both are on any Debian with a C compiler.

use super::{input, missing};
use std::error::Error;
use std::io;
use std::path::Path;
use std::process::Command;

/// One program to record.
pub struct Program {
    /// Its name, and its trace's.
    pub name: &'static str,
    /// Where it is; a bare name is looked up in `PATH`.
    pub path: String,
    /// Its arguments; it runs in the folder that holds its input.
    pub args: Vec<&'static str>,
    /// First line of what it says of itself.
    pub version: String,
    /// Where it expects its input.
    pub input_name: &'static str,
    /// Writes the input and says what it is.
    pub input: fn(&Path) -> io::Result<String>,
}

/// All programs, in the order in which they are recorded.
pub fn all() -> Result<[Program; 2], Box<dyn Error>> {
    // The compiler proper: `gcc` itself only starts it, and lackey does not follow.
    let cc1 = output("gcc", &["-print-prog-name=cc1"])?;
    Ok([
        Program {
            name: "cc1",
            path: cc1,
            args: vec!["-quiet", "-O1", "-o", "/dev/null", "input.c"],
            version: version("gcc")?,
            input_name: "input.c",
            input: input::c_source,
        },
        Program {
            name: "sort",
            path: "sort".into(),
            args: vec!["--parallel=1", "--buffer-size=200M", "-o", "/dev/null", "input.txt"],
            version: version("sort")?,
            input_name: "input.txt",
            input: input::long_lines,
        },
    ])
}

/// First line of what `tool --version` prints.
pub fn version(tool: &str) -> Result<String, Box<dyn Error>> {
    output(tool, &["--version"])
}

fn output(tool: &str, args: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new(tool).args(args).output().map_err(|error| missing(tool, &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
