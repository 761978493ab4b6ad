//! A sample of a run: one line of JSON on its socket, or a value in the same process.
//!
//! All figures are sums since the run began, so a watcher that misses a line loses nothing. New keys may be added. A
//! reader ignores unknown keys and takes a missing key as zero. A change of meaning changes [`Sample::VERSION`].

use crate::figures::{Ahead, Faults, Flushes, Mapped, TlbCounts, VcpuCounts};
use crate::live::Watching;
use serde::{Deserialize, Serialize};
use slat::Idle;

/// A run that can be watched.
pub trait Samples: Sync {
    /// Takes a sample now.
    fn sample(&self, idle: &mut Idle) -> Sample;

    /// Registers a watcher until the returned value is dropped.
    fn watch(&self) -> Watching<'_>;
}

/// A sample. See the module's header.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// [`Sample::VERSION`].
    pub watch: u32,
    /// True in the last sample of the run.
    pub ended: bool,
    /// Milliseconds since the run began.
    pub at_ms: u64,
    pub guest: String,
    pub format: String,
    pub accesses: u64,
    pub vcpus: Vec<VcpuCounts>,
    pub tlb: TlbCounts,
    pub faults: Faults,
    pub flushes: Flushes,
    /// The flushes by cause; causes that never occurred are left out.
    pub flushes_by: Vec<Caused>,
    pub lock: Lock,
    pub mapped: Mapped,
    pub mapped_bytes: u64,
    pub table_bytes: u64,
    pub dirty: Dirty,
    pub swap: Option<Swapped>,
    pub ahead: Ahead,
    pub ages: Ages,
    pub heat: Heat,
}

/// The flushes of one cause.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Caused {
    pub cause: String,
    #[serde(flatten)]
    pub flushes: Flushes,
}

/// The lock of a baseline policy: times that it was held by another thread, and the time that all threads waited for
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lock {
    pub waits: u64,
    pub wait_ns: u64,
}

/// Pages written: pages in all harvests of the dirty log, or pages with a Dirty bit where no log is on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dirty {
    pub by: String,
    pub pages: u64,
}

/// Pages written to swap and read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Swapped {
    pub out: u64,
    pub r#in: u64,
}

/// Mapped pages of 4 KiB by the time of their last use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ages {
    pub by: AgesBy,
    /// Youngest first.
    pub of: Vec<Age>,
}

/// The source of the ages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgesBy {
    /// None: the format has no Accessed bits, and there is no LRU.
    #[default]
    Unknown,
    /// Accessed bits, which the watcher clears.
    Accessed,
    /// The LRU.
    Generation,
}

/// Pages of about the same age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Age {
    /// The LRU's number of the generation.
    pub generation: Option<u64>,
    /// The greatest age of these pages; `None` for pages older than all other classes.
    pub within_ms: Option<u64>,
    pub pages: u64,
}

/// All guest memory in equal cells: one digit per cell, or [`Heat::NOTHING`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heat {
    /// Number of guest frames.
    pub frames: u64,
    pub frames_per_cell: u64,
    /// Warmth, 0 to 9: 9 where all pages were just used. Empty where ages are unknown.
    pub used: String,
    /// Share of written pages among mapped ones, in ninths: since the last look with a dirty log, since they were
    /// mapped without.
    pub written: String,
    /// Share of mapped pages that large leaf entries map, in ninths.
    pub large: String,
}

impl Heat {
    /// The cell of unmapped memory.
    pub const NOTHING: char = '.';
}

impl Sample {
    /// The version of the meaning of all fields.
    pub const VERSION: u32 = 1;

    /// Encodes the sample as a line without a newline.
    pub fn line(&self) -> String {
        // The sample contains no map and no foreign `Serialize`, so encoding cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Decodes a line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut sample: Self =
            serde_json::from_str(line).map_err(|error| format!("not a sample: {error}"))?;
        // A cause is printed on a terminal, so control characters are removed.
        sample.flushes_by.iter_mut().for_each(|of| of.cause.retain(|char| !char.is_control()));
        match sample.watch {
            Self::VERSION => Ok(sample),
            0 => Err("not a sample: `watch` is missing".into()),
            other => Err(format!("its samples have version {other}, this slat reads {}", Self::VERSION)),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run after `n` half seconds; each of its figures grows.
    pub fn sample(halves: u64) -> Sample {
        let flushes = |paid: u64| Flushes { requested: 3 * paid, paid, pages: 4 * paid };
        let caused = |cause: &str, paid| Caused { cause: cause.into(), flushes: flushes(paid) };
        let vcpu = |part: u64| VcpuCounts {
            accesses: halves * 600_000 / part,
            faults: halves * 900 / part,
            hits: halves * 590_000 / part,
            misses: halves * 10_000,
        };
        let age = |within_ms, pages| Age { generation: None, within_ms, pages };
        let digits = |of: &dyn Fn(u64) -> Option<u64>| {
            (0..96)
                .map(|cell| of(cell).map_or(Heat::NOTHING, |digit| char::from(b'0' + digit as u8)))
                .collect()
        };
        let mapped = |cell: u64| (cell / 7 % 4 != 3).then_some(cell);
        Sample {
            watch: Sample::VERSION,
            ended: false,
            at_ms: halves * 500,
            guest: "cc1, sort, boot".into(),
            format: "ept4".into(),
            accesses: halves * 1_100_000,
            vcpus: (1..4).map(vcpu).collect(),
            tlb: TlbCounts { hits: halves * 1_081_666, misses: halves * 30_000 },
            faults: Faults {
                total: halves * halves * 1_650,
                map: halves * 1_500,
                permission: halves * 120,
                spurious: halves * 30,
                mmio: 0,
                retry: halves * 125,
                ..Faults::default()
            },
            flushes: flushes(halves * 590),
            flushes_by: vec![
                caused("migrate", halves * 490),
                caused("write-protect", 12),
                caused("dirty-log", halves * 100),
            ],
            lock: Lock::default(),
            mapped: Mapped { k4: 43_252, m2: 12, g1: 0 },
            mapped_bytes: (43_252 << 12) + (12 << 21),
            table_bytes: 475_136,
            dirty: Dirty { by: "bitmap".into(), pages: halves * 6_000 },
            swap: None,
            ahead: Ahead::default(),
            ages: Ages {
                by: AgesBy::Accessed,
                of: vec![
                    age(Some(508), 20_000),
                    age(Some(1_000), 9_000),
                    age(Some(4_000), 12_000),
                    age(Some(16_000), 0),
                    age(Some(64_000), 2_000),
                    age(None, 6_396),
                ],
            },
            heat: Heat {
                frames: 96 * 1024,
                frames_per_cell: 1024,
                used: digits(&|cell| mapped(cell).map(|cell| (cell + halves) % 10)),
                written: digits(&|cell| mapped(cell).map(|cell| cell / 10)),
                large: digits(&|cell| mapped(cell).map(|cell| cell / 48 * 9)),
            },
        }
    }

    #[test]
    fn a_sample_is_read_as_it_is_written() {
        let swap = Some(Swapped { out: 5, r#in: 3 });
        let ahead = Ahead { frames: 9, zeroed: 7, direct_reclaims: 1 };
        let generation = Ages {
            by: AgesBy::Generation,
            of: vec![Age { generation: Some(7), within_ms: Some(12), pages: 3 }],
        };
        for sample in [
            sample(3),
            Sample { ended: true, swap, ahead, ages: generation, ..sample(4) },
            Sample { watch: Sample::VERSION, ..Sample::default() },
        ] {
            let line = sample.line();
            assert!(!line.contains('\n'));
            assert_eq!(Sample::parse(&line), Ok(sample));
        }
    }

    #[test]
    fn missing_keys_are_zero_and_unknown_keys_are_ignored() {
        let sample = Sample::parse(r#"{"watch":1,"accesses":5,"faults":{"map":2},"colour":"red"}"#).unwrap();
        assert_eq!((sample.accesses, sample.faults.map, sample.faults.mmio), (5, 2, 0));
        let line = r#"{"watch":1,"flushes_by":[{"cause":"mig\u001b[2Jrate","paid":1}]}"#;
        assert_eq!(Sample::parse(line).unwrap().flushes_by[0].cause, "mig[2Jrate");
    }

    #[test]
    fn a_line_that_is_not_a_sample_is_refused_in_one_line() {
        for (line, why) in [
            ("", "not a sample"),
            ("ok", "not a sample"),
            ("{}", "`watch` is missing"),
            (r#"{"watch":2}"#, "version 2, this slat reads 1"),
            (r#"{"watch":1,"accesses":-1}"#, "not a sample"),
            (r#"{"watch":1,"accesses":"#, "not a sample"),
        ] {
            let error = Sample::parse(line).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{line}: {error}");
        }
    }
}
