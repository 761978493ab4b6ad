//! The five patch series that benches answer, by what `book/src/sources.md` calls them. Results keep a number for each.

/// What the series of this number is called; KVM is no series.
///
/// # Panics
/// Where there is no such series.
pub fn name(number: &str) -> &'static str {
    match number {
        "mglru-aging" => "MGLRU aging",
        "scalable-memslots" => "scalable memslots",
        "numa-protection" => "NUMA protection",
        "tdp-mmu" => "TDP MMU",
        "change-pte" => "change-pte",
        "kvm" => "KVM",
        _ => panic!("a series that is not in book/src/sources.md: {number}"),
    }
}
