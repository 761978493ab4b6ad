//! The five patch series that benches answer, by what `book/src/sources.md` calls them. Results keep a number for each.

/// What the series of this number is called; KVM is no series.
///
/// # Panics
/// Where there is no such series.
pub fn name(number: &str) -> &'static str {
    match number {
        "000" => "MGLRU aging",
        "001" => "scalable memslots",
        "002" => "NUMA protection",
        "003" => "TDP MMU",
        "004" => "change-pte",
        "KVM" => "KVM",
        _ => panic!("a series that is not in book/src/sources.md: {number}"),
    }
}
