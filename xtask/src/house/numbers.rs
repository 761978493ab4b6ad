//! In the engine's public signatures an address, a frame or an entry has a type of its own (`addr`, `table::Word`),
//! never a bare `u64`. A bare number is a count, and its name says of what.
//!
//! The rule covers parameters and results of `pub fn` and of methods of a `pub trait`, and `pub` fields. It does not
//! cover the types that hold the number themselves, constants, and private and `pub(crate)` items.

use crate::source::{Finding, Source, words};

/// Excepted files: conversions of numbers to types, counters, and hooks for tests.
const FILES: [&str; 3] = ["crates/slots/src/addr.rs", "slat/src/stats.rs", "slat/src/inject/planned.rs"];

/// Parameters, fields and functions that may have a bare number, and what it counts.
const NUMBERS: [(&str, &str); 8] = [
    (
        "pages frames bytes table_bytes shrink compact requested paid flushes collected_not_reset takings_since lock_waits",
        "how many",
    ),
    ("prefault populate progress split recover map unmap", "pages mapped, split, or recovered"),
    ("dirty_bits clear_dirty collect_ring reset_rings reset_rings_in_part", "pages that are, or were, dirty"),
    ("page first", "a page of a slot, counted from its first"),
    (
        "number get serial since",
        "the number of a generation, a version, a log or a flush, as a record names it",
    ),
    ("bits into touch touch_link touch_store words", "64 pages, bits of an entry, or a packed slot"),
    (
        "pointer ncr3 pat vttbr vtcr hgatp info1 hpfar cause htval htinst carried cr0 cr3 cr4 efer pdptes",
        "a register of a guest's",
    ),
    ("mark", "the mark of a frozen entry: any number that no other one uses"),
];

pub fn check(source: &Source) -> Vec<Finding> {
    if FILES.iter().any(|file| source.path.as_os_str() == *file) {
        return Vec::new();
    }
    let mut in_trait = false;
    source.find(source.shipped(), |index, line| {
        in_trait = line.starts_with("pub trait") || (in_trait && line != "}");
        let item = line.trim();
        let name = if is_function(item, in_trait) {
            in_signature(&signature(&source.code[index..])?)?
        } else {
            let (name, what) = item.strip_prefix("pub ")?.split_once(": ")?;
            (!name.starts_with("const ") && is_bare(name, what)).then(|| name.to_owned())?
        };
        Some(format!("{name} is a bare u64: an address wants a type, a count a name in {}", file!()))
    })
}

fn is_function(item: &str, in_trait: bool) -> bool {
    let item = item.strip_prefix("pub ").or(in_trait.then_some(item));
    item.is_some_and(|item| ["fn ", "const fn ", "unsafe fn "].iter().any(|begin| item.starts_with(begin)))
}

/// Returns the signature from the name up to the body, in one line. Arrows are no brackets.
fn signature(lines: &[String]) -> Option<String> {
    let end = lines.iter().position(|line| line.contains(['{', ';']))?;
    let text = lines[..=end].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ").replace("->", "=");
    Some(text.split_once("fn ")?.1.split(['{', ';']).next()?.to_owned())
}

/// Returns the first name in a signature with a bare number that is not known to count.
fn in_signature(signature: &str) -> Option<String> {
    let (parameters, answer) = signature.rsplit_once(") =").unwrap_or((signature, ""));
    let function = parameters.split(['(', '<']).next()?;
    let (mut name, mut of_closure) = (function, false);
    for piece in parameters.split([',', '(']) {
        let what = piece.split_once(": ").map_or(piece, |(begins, what)| {
            name = begins.trim().trim_start_matches("mut ");
            what
        });
        // Arguments of closures are not covered.
        if !of_closure && is_bare(name, what) {
            return Some(name.to_owned());
        }
        of_closure = ["Fn", "FnMut", "FnOnce"].iter().any(|closure| piece.ends_with(closure));
    }
    is_bare(function, answer).then(|| function.to_owned())
}

/// Returns whether `what` has a bare number that `name` does not explain.
fn is_bare(name: &str, what: &str) -> bool {
    words(what).any(|word| word == "u64")
        && !NUMBERS.iter().any(|(names, _)| names.split(' ').any(|number| number == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_types_and_counts_are_numbers() {
        for (text, findings) in [
            ("pub fn map(&self, gfn: u64) {}", 1),
            ("pub const fn map<F: Format>(&self, at: At<'_>, hva: Option<u64>) {}", 1),
            ("pub fn map(\n    &self,\n    pages: u64,\n    gpa: u64,\n) -> bool {", 1),
            ("pub fn root(&self) -> u64 {}", 1),
            ("pub trait Host {\n    fn frame(&self) -> (u64, u64);\n}\nfn own(a: u64) {}", 1),
            ("pub struct A {\n    pub pfn: u64,\n    own: u64,\n}", 1),
            ("pub fn map(&self, gfn: Gfn, mut pages: u64) -> Result<(), NoMemory> {", 0),
            ("pub fn pages(&self) -> u64 {}\npub fn split(child: impl Fn(u64) -> Word) {", 0),
            ("pub(crate) fn map(gfn: u64) {}\nfn map(gfn: u64) {}\npub struct Gfn(pub u64);", 0),
            ("#[cfg(test)]\nmod tests {\n    pub fn map(gfn: u64) {}\n}", 0),
        ] {
            assert_eq!(check(&Source::new("slat/src/a.rs", text)).len(), findings, "{text}");
        }
        assert_eq!(check(&Source::new("cli/src/a.rs", "pub fn map(gfn: u64) {}")).len(), 0);
    }
}
