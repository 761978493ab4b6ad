//! `serve --config FILE`: the flags of `serve` in a file of TOML.

use std::ffi::{OsStr, OsString};

/// Replaces `--config` by the flags of the file. Flags of the command line take precedence. `program` knows the flags of
/// `serve`.
pub fn expand(words: Vec<OsString>, program: &clap::Command) -> Result<Vec<OsString>, String> {
    if words.get(1).is_none_or(|word| word != "serve") {
        return Ok(words);
    }
    let mut expanded: Vec<OsString> = words[..2].to_vec();
    let (mut rest, mut own) = (words[2..].iter(), Vec::new());
    while let Some(word) = rest.next() {
        let text = word.to_str().unwrap_or_default();
        let file: Option<&OsStr> = match text.strip_prefix("--config=") {
            Some(file) => Some(OsStr::new(file)),
            None if text == "--config" => Some(rest.next().ok_or("--config needs a file")?),
            None => None,
        };
        let Some(file) = file else {
            own.push(word.clone());
            continue;
        };
        let named = |what: String| format!("{}: {what}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        expanded.extend(flags(&text, program).map_err(named)?);
    }
    expanded.extend(own);
    Ok(expanded)
}

/// Returns the flags of a file: one for each key.
fn flags(text: &str, program: &clap::Command) -> Result<Vec<OsString>, String> {
    let serve = program.find_subcommand("serve").expect("it is a command");
    let is_known =
        |key: &str| serve.get_arguments().any(|flag| flag.get_long() == Some(key)) && key != "config";
    Ok(slat_pager::flags(text, is_known)?.into_iter().map(OsString::from).collect())
}
