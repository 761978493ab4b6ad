//! The figures that patch series for Linux published, each once: its source, its unit, its conditions.
//!
//! Everything that compares slat with a series reads its figures here: the rows of `slat bench`, the rows of `slat sim`, and the
//! pages of `slat report`. `book/src/sources.md` has the titles, authors and dates of the series. A series is named by its
//! [`id`](PatchSeries::id) in JSON, and by its [`name`](PatchSeries::name) in text. (A *seed* is that of random numbers.)

/// A patch series whose figures are here, or KVM's own history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchSeries {
    /// *mm: multi-gen LRU: Have secondary MMUs participate in aging*, version 4, 2024.
    MglruAging,
    /// *KVM: Scalable memslots implementation*, version 3, 2021.
    ScalableMemslots,
    /// *KVM: Unmap pages only when it's indeed protected for NUMA migration*, 2023-08-11.
    NumaProtection,
    /// *kvm: mmu: Rework the x86 TDP direct mapped case*, RFC, 2019-09-26.
    TdpMmu,
    /// *`kvm/mmu_notifier`: re-enable the `change_pte()` optimization*, 2019.
    ChangePte,
    /// Commits of KVM that belong to none of these.
    Kvm,
}

use PatchSeries::{ChangePte, Kvm, MglruAging, NumaProtection, ScalableMemslots, TdpMmu};

impl PatchSeries {
    /// All of them. The first five have a page of the report each.
    pub const ALL: [Self; 6] = [MglruAging, ScalableMemslots, NumaProtection, TdpMmu, ChangePte, Kvm];

    /// As JSON has it.
    pub const fn id(self) -> &'static str {
        match self {
            MglruAging => "mglru-aging",
            ScalableMemslots => "scalable-memslots",
            NumaProtection => "numa-protection",
            TdpMmu => "tdp-mmu",
            ChangePte => "change-pte",
            Kvm => "kvm",
        }
    }

    /// As text has it.
    pub const fn name(self) -> &'static str {
        match self {
            MglruAging => "MGLRU aging",
            ScalableMemslots => "scalable memslots",
            NumaProtection => "NUMA protection",
            TdpMmu => "TDP MMU",
            ChangePte => "change-pte",
            Kvm => "KVM",
        }
    }
}

/// The name of the series with this [`id`](PatchSeries::id).
///
/// # Panics
/// Where there is no such series.
pub fn name(id: &str) -> &'static str {
    let series = PatchSeries::ALL.into_iter().find(|series| series.id() == id);
    series.unwrap_or_else(|| panic!("a series that is not in book/src/sources.md: {id}")).name()
}

/// MGLRU aging: `access_tracking_perf_test -p -l -b 1G`, on a machine with 112 CPUs. Each vCPU faults in 1 GiB of 4 KiB pages while
/// the multi-gen LRU ages. *No opt*: the secondary MMU is asked under the MMU lock. *Opt*: without it.
pub mod mglru_aging {
    /// Seconds, with so many vCPUs.
    pub struct Row {
        /// A thread each.
        pub vcpus: u32,
        /// Wall time of the vCPUs: without aging; with aging, no opt; with aging, opt.
        pub wall: [f64; 3],
        /// The average aging pass: no opt, opt.
        pub pass: [f64; 2],
    }

    const fn row(vcpus: u32, wall: [f64; 3], pass: [f64; 2]) -> Row {
        Row { vcpus, wall, pass }
    }

    /// Ascending numbers of vCPUs.
    pub const TABLE: [Row; 8] = [
        row(1, [0.878_822_016, 0.938_250_568, 0.912_270_190], [0.008_236_007, 0.007_314_582]),
        row(2, [0.984_959_659, 1.057_880_728, 1.037_735_641], [0.017_989_741, 0.013_996_319]),
        row(4, [1.264_881_581, 1.318_849_182, 1.314_653_465], [0.056_164_918, 0.029_311_993]),
        row(8, [1.473_883_699, 1.589_441_079, 1.498_439_592], [0.227_419_586, 0.063_857_740]),
        row(16, [2.048_766_096, 2.399_335_597, 2.000_914_001], [1.247_142_841, 0.121_628_689]),
        row(32, [3.316_256_321, 3.955_417_018, 3.355_274_507], [4.347_290_433, 0.250_886_289]),
        row(64, [6.498_958_516, 7.127_533_884, 6.442_582_168], [9.815_592_054, 1.392_907_010]),
        row(MOST, [8.498_029_491, 10.213_724_95, 8.896_963_554], [13.473_816_56, 2.292_223_850]),
    ];

    /// The most vCPUs of the table.
    pub const MOST: u32 = 112;

    /// The row of so many vCPUs, if the table has it.
    pub fn with(vcpus: u32) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.vcpus == vcpus)
    }
}

/// Scalable memslots: KVM's `memslot_perf_test`. Seconds of one iteration. Where the message says *none* for a gain, both figures are
/// as it prints them. Its largest number of slots is printed as 32k; the test of `map` can use 8194 at most.
pub mod scalable_memslots {
    /// Slots; seconds before and after.
    pub type Row = (u32, [f64; 2]);

    /// The tests in the order of the message, by the names of `slat bench memslot-perf`; each with ascending numbers of slots.
    pub const TABLE: [(&str, [Row; 6]); 6] = [
        (
            "map",
            test(
                8194,
                [0.0192, 0.0192, 0.0192, 0.0195, 0.0232, 0.200],
                [0.0186, 0.0190, 0.0190, 0.0191, 0.0223, 0.0541],
            ),
        ),
        (
            "unmap",
            test(
                32_764,
                [0.0313, 0.0325, 0.0339, 0.0374, 0.0724, 3.88],
                [0.0310, 0.0310, 0.0311, 0.0312, 0.0315, 0.0351],
            ),
        ),
        (
            "unmap-2m",
            test(
                32_764,
                [0.000_348, 0.000_373, 0.000_399, 0.000_470, 0.001_55, 3.88],
                [0.000_351, 0.000_373, 0.000_395, 0.000_447, 0.000_869, 0.0348],
            ),
        ),
        (
            "move-active",
            test(
                32_764,
                [0.000_110, 0.000_100, 0.000_099_9, 0.000_095_6, 0.000_101, 0.001_42],
                [0.000_094_8, 0.000_086_5, 0.000_085_4, 0.000_080_0, 0.000_079_2, 0.000_078_6],
            ),
        ),
        (
            "move-inactive",
            test(
                32_764,
                [0.000_111, 0.000_106, 0.000_099_2, 0.000_101, 0.000_108, 0.001_48],
                [0.000_093_3, 0.000_091_8, 0.000_082_6, 0.000_084_0, 0.000_084_7, 0.000_088_0],
            ),
        ),
        (
            "setup",
            test(
                32_764,
                [0.000_342, 0.000_989, 0.001_41, 0.002_60, 0.0135, 16.1],
                [0.000_283, 0.000_775, 0.000_990, 0.001_74, 0.008_03, 0.59],
            ),
        ),
    ];

    /// A test with 10 to 509 slots and with `most`.
    const fn test(most: u32, before: [f64; 6], after: [f64; 6]) -> [Row; 6] {
        let slots = [10, 30, 50, 100, 509, most];
        let mut rows = [(0, [0.0; 2]); 6];
        let mut nth = 0;
        while nth < rows.len() {
            rows[nth] = (slots[nth], [before[nth], after[nth]]);
            nth += 1;
        }
        rows
    }

    /// The rows of a test; none where the message does not have the test.
    pub fn rows(test: &str) -> &'static [Row] {
        TABLE.iter().find(|(name, _)| *name == test).map_or(&[], |(_, rows)| rows)
    }

    /// Before over after of a test with so many slots, where the message has that row.
    pub fn ratio(test: &str, slots: u32) -> Option<f64> {
        rows(test).iter().find(|row| row.0 == slots).map(|(_, [before, after])| before / after)
    }
}

/// NUMA protection: ten boots of a guest on a host that balances its nodes. Counts of a boot; a call before was one for each 2 MiB,
/// and after one for each page.
pub mod numa_protection {
    /// Calls that unmap, and remote TLB flushes: each before and after.
    pub struct Boot {
        /// As the message calls it.
        pub name: &'static str,
        /// Calls that unmap.
        pub calls: [f64; 2],
        /// Remote TLB flushes.
        pub flushes: [f64; 2],
    }

    /// The mean of ten boots.
    pub const AVERAGE: Boot = Boot { name: "on average", calls: [35.0, 10_037.0], flushes: [8625.0, 4610.0] };
    /// The best boot.
    pub const BEST: Boot = Boot { name: "best", calls: [28.0, 406.0], flushes: [13.0, 195.0] };
    /// The worst boot.
    pub const WORST: Boot = Boot { name: "worst", calls: [44.0, 17_352.0], flushes: [43_920.0, 8668.0] };
}

/// TDP MMU: KVM's demand-paging test, 416 vCPUs of 4 GiB each, each with a handler thread of its own.
pub mod tdp_mmu {
    /// vCPUs of the test.
    pub const VCPUS: u32 = 416;
    /// The share of the time spent waiting for the MMU lock, before.
    pub const WAITING: f64 = 0.98;
    /// The share of the test's time that the series saves.
    pub const SAVED: f64 = 0.89;
}

/// change-pte: LTP's `ksm02`, in a guest that builds a kernel beside KSM. Mean and standard deviation, before and after.
pub mod change_pte {
    /// The measurement, its unit, and the two figures.
    pub type Row = (&'static str, &'static str, [[f64; 2]; 2]);

    /// As the message has it.
    pub const TABLE: [Row; 4] = [
        ("real time", "s", [[675.460_632, 37.035_435], [672.515_503, 37.340_954]]),
        ("user time", "s", [[857.771_423, 4.395_942], [855.817_322, 4.051_633]]),
        ("system time", "s", [[215.929_657, 3.976_172], [200.902_710, 3.894_153]]),
        ("pages", "", [[4_773.066_895, 675.352_783], [4899.0, 742.413_452]]),
    ];

    /// The means of the system time.
    pub const SYSTEM_TIME: [f64; 2] = [TABLE[2].2[0][0], TABLE[2].2[1][0]];
}

/// KVM: commits about dirty logs.
pub mod kvm {
    /// Commit 3c9bd4006b, gradual dirty logs: seconds until the log of 128 GiB is enabled, up front and gradually.
    pub const ENABLE: [f64; 2] = [0.46, 0.01];
    /// Commit a3fe5dbda0a4, eager splitting on x86: seconds of the first pass of writes with 96 vCPUs, lazy and eager.
    pub const FIRST_WRITES: [f64; 2] = [2.94, 0.14];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_id() {
        for series in PatchSeries::ALL {
            assert_eq!(name(series.id()), series.name());
        }
    }

    #[test]
    fn rows_that_the_message_has_carry_its_ratio() {
        let ratio = scalable_memslots::ratio;
        assert!(ratio("unmap", 32_764).is_some_and(|ratio| (110.0..111.0).contains(&ratio)));
        assert!(ratio("map", 8194).is_some_and(|ratio| (3.69..3.70).contains(&ratio)));
        assert_eq!((ratio("map", 32_764), ratio("setup", 1_000_000), ratio("none", 10)), (None, None, None));
    }

    #[test]
    fn tables_ascend_and_what_is_less_after_is_less() {
        assert!(mglru_aging::TABLE.is_sorted_by_key(|row| row.vcpus));
        assert!(mglru_aging::TABLE.iter().all(|row| row.wall[0] < row.wall[1] && row.pass[1] < row.pass[0]));
        for (test, rows) in &scalable_memslots::TABLE {
            assert!(rows.is_sorted_by_key(|row| row.0), "{test}");
        }
    }
}
