//! The patch series that the report compares slat with: a text of each, and its published figures as facts.
//!
//! A published figure has the name and the settings of the row that measures the same here, where there is one.

use crate::report::facts::{Fact, KVM_NUMA, Params, Source};
use slat_series::{PatchSeries, change_pte, kvm, mglru_aging, numa_protection, scalable_memslots, tdp_mmu};

/// The name of the comparison that the MGLRU aging series makes.
pub const AGING_LOCK: &str = "page by page: lock (no opt) → lockless (opt)";

/// A section of the page.
#[derive(Debug)]
pub struct Text {
    pub series: PatchSeries,
    pub title: &'static str,
    pub about: &'static str,
    /// The names of before and after, where the name of a figure does not have them.
    pub sides: [&'static str; 2],
}

/// All sections of series, in order.
pub const TEXTS: [Text; 6] = [
    Text {
        series: PatchSeries::MglruAging,
        title: "aging that asks the guests, and takes no lock",
        about: "A host that ages by its own Accessed bits does not see what guests use. The series lets the multi-gen LRU ask KVM while \
                it ages, without the MMU lock, so that vCPUs that fault meanwhile are not held up. Here: the same, and slat's own pass, \
                which goes table by table. The series' machine has 112 CPUs; here the vCPUs share the CPUs of this machine.",
        sides: ["lock held", "no lock held"],
    },
    Text {
        series: PatchSeries::ScalableMemslots,
        title: "memslots that scale",
        about: "Memslots map guest frames to host addresses. Kept in one sorted array, every change copies all of them, and a host \
                address is looked for one by one. The series keeps them in two trees. Here: a copy-on-write tree whose root is \
                published, against the sorted array on the same engine, in the scenarios of KVM's `memslot_perf_test`.",
        sides: ["a sorted array", "trees"],
    },
    Text {
        series: PatchSeries::NumaProtection,
        title: "NUMA balancing without needless flushes",
        about: "To learn which node uses a page, the host makes it inaccessible for a while. KVM unmapped the whole range that was \
                looked at; the series unmaps the pages that are protected indeed. The series counts ten boots of a guest. Here traces \
                of a boot and of programs are replayed while their vCPUs change nodes. Compare the ratios, not the counts.",
        sides: ["whole ranges", "page by page"],
    },
    Text {
        series: PatchSeries::TdpMmu,
        title: "faults in parallel, for hundreds of vCPUs",
        about: "KVM's MMU had one lock. The series walks tables while others change them, by compare-and-swap at the entry, under a \
                reader-writer lock; it lets VMs of 416 vCPUs and 12 TiB migrate. Here: the same engine with one mutex (`exclusive`, \
                before), with a reader-writer lock (`read-write`, as the series describes), and with no lock at all (`none`, slat as it \
                ships).",
        sides: ["one mutex", "faults in parallel"],
    },
    Text {
        series: PatchSeries::ChangePte,
        title: "a page is replaced, never missing",
        about: "A merge tells KVM of a change of a page, and KVM unmapped it; a guest that touches the page meanwhile faults. The \
                series keeps it mapped where that is safe: read-only to another frame with the same contents, and the like. Here: the \
                same KSM under the same engine, with the reasons for changes heeded and not.",
        sides: ["reasons ignored", "reasons heeded"],
    },
    Text {
        series: PatchSeries::Kvm,
        title: "commits outside of these series",
        about: "KVM's dirty logs: enabled gradually, and with large pages split ahead of writes. The benches of this section answer no \
                series; those of dirty logs are in the section of the TDP MMU series.",
        sides: ["before", "after"],
    },
];

/// The published figures of a series.
pub fn published(series: PatchSeries) -> Vec<Fact> {
    let fact =
        |of: &str, name: &str, params: Params<'_>, unit| Fact::new(Source::Series, (of, name, params), unit);
    match series {
        PatchSeries::MglruAging => {
            let of = "access-tracking-perf";
            let each = |name, figure, of_row: fn(&mglru_aging::Row) -> [f64; 2]| {
                let row = move |row| {
                    let [before, after] = of_row(row);
                    let params = [("figure", figure), ("vcpus", &*row.vcpus.to_string())];
                    fact(of, name, &params, "s").of(before, after)
                };
                mglru_aging::TABLE.iter().map(row).collect::<Vec<_>>()
            };
            let wall = "vCPU wall time";
            [
                each(AGING_LOCK, "average pass", |row| row.pass),
                each("reader-writer lock: no aging → no opt", wall, |row| [row.wall[0], row.wall[1]]),
                each("reader-writer lock: no aging → opt", wall, |row| [row.wall[0], row.wall[2]]),
            ]
            .concat()
        }
        PatchSeries::ScalableMemslots => {
            let row = |test, &(slots, [before, after]): &scalable_memslots::Row| {
                fact("memslot-perf", test, &[("slots", &slots.to_string())], "s").of(before, after)
            };
            scalable_memslots::TABLE
                .iter()
                .flat_map(|(test, rows)| rows.iter().map(move |one| row(test, one)))
                .collect()
        }
        PatchSeries::NumaProtection => {
            use numa_protection::{AVERAGE, BEST, WORST};
            let counts = |name: &str, boot: &numa_protection::Boot| {
                [("unmap calls", "calls", boot.calls), ("remote flushes", "flushes", boot.flushes)].map(
                    |(what, unit, [before, after])| {
                        fact("numa-balancing", name, &[("mean of", what), ("device", "none")], unit)
                            .of(before, after)
                    },
                )
            };
            [counts(KVM_NUMA, &AVERAGE), counts("the best of ten boots", &BEST), counts("the worst", &WORST)]
                .concat()
        }
        PatchSeries::TdpMmu => {
            let vcpus = tdp_mmu::VCPUS.to_string();
            let of = |name, params: Params<'_>| fact("demand-paging", name, params, "share");
            let waiting = of(
                "one mutex: before",
                &[("figure", "waiting for the MMU lock"), ("vcpus", &vcpus), ("served", "by handlers")],
            );
            let saved = of("time that the series saves", &[("vcpus", &vcpus)]);
            vec![
                Fact { before: Some(tdp_mmu::WAITING), ..waiting },
                Fact { after: Some(tdp_mmu::SAVED), ..saved },
            ]
        }
        PatchSeries::ChangePte => {
            let row = |(name, unit, [before, after]): &change_pte::Row| {
                let of = |what, nth: usize| {
                    let params = [("test", "ksm02"), ("of its runs", what)];
                    fact("ksm-perf", name, &params, unit).of(before[nth], after[nth])
                };
                [of("mean", 0), of("standard deviation", 1)]
            };
            change_pte::TABLE.iter().flat_map(row).collect()
        }
        PatchSeries::Kvm => {
            let of = |name, params: Params<'_>, [before, after]: [f64; 2]| {
                fact("dirty-log-perf", name, params, "s").of(before, after)
            };
            vec![
                of("the log is enabled, up front → gradually", &[("memory", "128 GiB")], kvm::ENABLE),
                of("first pass of writes, lazy → eager split", &[("vcpus", "96")], kvm::FIRST_WRITES),
            ]
        }
    }
}
