//! The configuration of a daemon: flags of a command as TOML.

/// Converts a text of TOML to flags of a command line. Each key is a flag, and an array is a flag that occurs several
/// times. `is_known` says which flags there are.
///
/// # Errors
/// One line: the text is not TOML, or has an unknown key, or a value that no flag can have.
#[doc(hidden)]
pub fn flags(text: &str, is_known: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| error.to_string().trim_end().replace('\n', " "))?;
    let mut flags = Vec::new();
    for (key, value) in table {
        if !is_known(&key) {
            return Err(format!("{key}: `serve` has no such flag; slat-pager serve --help lists them"));
        }
        let values = match value {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                other => return Err(format!("{key}: a {} is neither a text nor a number", other.type_str())),
            };
            flags.push(format!("--{key}={value}"));
        }
    }
    Ok(flags)
}
