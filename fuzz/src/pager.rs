//! `pager`: what comes into a pager from outside, by any of its doors: a VMM, a store that others write to, a server of NBD.
//!
//! The first byte says by which. What comes in gives a value or an error of one line, in memory that its length bounds.

use crate::heap;
use slat_pager::hostile::DOORS;

/// Memory that a parser may take for each byte, and in any case: a chunk, its window, and tables to expand it.
const EACH: usize = 64;
const ANY: usize = 12 << 20;

/// The target.
pub fn run(bytes: &[u8]) {
    let [door, bytes @ ..] = bytes else { return };
    match DOORS.get(usize::from(*door) % (DOORS.len() + 1)) {
        Some(door) => bounded(door.name, bytes, door.open),
        None => bounded("configuration", bytes, configuration),
    }
}

/// Panics where it takes more memory than it may.
pub fn bounded(name: &str, bytes: &[u8], parse: impl FnOnce(&[u8])) {
    let (took, may) = (heap::most(|| parse(bytes)), EACH * bytes.len() + ANY);
    assert!(took <= may, "{name}: {took} bytes of memory for {}, {may} may be", bytes.len());
}

fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match slat_pager::flags(&text, |key| ["store", "guest", "record"].contains(&key)) {
        // Each is one word, which no other flag can be in.
        Ok(flags) => assert!(flags.iter().all(|flag| flag.starts_with("--") && flag.contains('='))),
        Err(error) => assert!(!error.contains('\n'), "{error:?}"),
    }
}
