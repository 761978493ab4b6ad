//! `pager`: outside bytes at each entry point of a pager: a VMM, a shared store, an NBD server.
//!
//! The first byte chooses the entry point. The bytes must give a value or an error of one line, in memory bounded by
//! their length.

use crate::heap;
use slat_pager::fuzzing::ENTRY_POINTS;

/// Memory that a parser may use for each byte; and in any case: a chunk, its window, and tables to expand it.
const EACH: usize = 64;
const ANY: usize = 12 << 20;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let [point, bytes @ ..] = bytes else { return };
    match ENTRY_POINTS.get(usize::from(*point) % (ENTRY_POINTS.len() + 1)) {
        Some(point) => bounded(point.name, bytes, point.run),
        None => bounded("configuration", bytes, configuration),
    }
}

/// Panics if the parser uses too much memory.
pub fn bounded(name: &str, bytes: &[u8], parse: impl FnOnce(&[u8])) {
    let (took, may) = (heap::most(|| parse(bytes)), EACH * bytes.len() + ANY);
    assert!(took <= may, "{name}: {took} bytes of memory for {}, {may} may be", bytes.len());
}

fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match slat_pager::flags(&text, |key| ["store", "guest", "record"].contains(&key)) {
        // Each flag is one word, so that no other flag can hide in it.
        Ok(flags) => assert!(flags.iter().all(|flag| flag.starts_with("--") && flag.contains('='))),
        Err(error) => assert!(!error.contains('\n'), "{error:?}"),
    }
}
