//! What a run says to whoever watches it: one line of JSON for each look, on its socket, or a value, in the same process.
//!
//! All figures are sums since the run began, so that who misses a line, or comes late, has lost nothing. Keys may be added;
//! who does not know one passes over it, and one that is missing is zero. What changes its meaning changes
//! [`Sample::VERSION`].

use crate::run::figures::{Faults, Flushes, Mapped, TlbCounts, VcpuCounts};
use serde::{Deserialize, Serialize};

/// See the module's header.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// [`Sample::VERSION`].
    pub watch: u32,
    /// The run has ended: this is the last line.
    pub ended: bool,
    /// Since the run began.
    pub at_ms: u64,
    pub guest: String,
    pub format: String,
    pub accesses: u64,
    pub vcpus: Vec<VcpuCounts>,
    pub tlb: TlbCounts,
    pub faults: Faults,
    pub flushes: Flushes,
    /// Those that there were.
    pub flushes_by: Vec<Caused>,
    pub lock: Lock,
    pub mapped: Mapped,
    pub mapped_bytes: u64,
    pub table_bytes: u64,
    pub dirty: Dirty,
    pub swap: Option<Swapped>,
    pub ages: Ages,
    pub heat: Heat,
}

/// Flushes for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Caused {
    pub cause: String,
    #[serde(flatten)]
    pub flushes: Flushes,
}

/// The lock of a baseline policy: times that it was not free, and how long all waited for it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lock {
    pub waits: u64,
    pub wait_ns: u64,
}

/// Pages written to: as often as the dirty log has told of them; without one, those that have a Dirty bit.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dirty {
    pub by: String,
    pub pages: u64,
}

/// Pages that went to swap and came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Swapped {
    pub out: u64,
    pub r#in: u64,
}

/// Mapped pages of 4 KiB by when they were last used.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ages {
    pub by: AgesBy,
    /// Youngest first.
    pub of: Vec<Age>,
}

/// Who knows how old pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgesBy {
    /// Nobody: a format without Accessed bits, and no LRU.
    #[default]
    Nobody,
    /// Whoever watches, by Accessed bits.
    Accessed,
    /// The LRU.
    Generation,
}

/// Pages of about the same age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Age {
    /// The LRU's number of it.
    pub generation: Option<u64>,
    /// They were used at most so long ago; `None`: longer than all before.
    pub within_ms: Option<u64>,
    pub pages: u64,
}

/// Guest memory from one end to the other, in equal cells: a digit for each, or [`Heat::NOTHING`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heat {
    /// Guest frames.
    pub frames: u64,
    pub frames_per_cell: u64,
    /// How warm: 9 where all pages were used just now. Empty where nobody knows.
    pub used: String,
    /// What part of the mapped pages was written to, in ninths: since the last look, where there is a dirty log; else
    /// since they were mapped.
    pub written: String,
    /// What part of them is mapped by large leaves.
    pub large: String,
}

impl Heat {
    /// Where nothing is mapped.
    pub const NOTHING: char = '.';
}

impl Sample {
    /// Of what the fields mean.
    pub const VERSION: u32 = 1;

    /// As a line, without its end.
    pub fn line(&self) -> String {
        // No key of a map, and no foreign implementation, is in it that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let sample: Self = serde_json::from_str(line).map_err(|error| format!("what it says is no sample: {error}"))?;
        match sample.watch {
            Self::VERSION => Ok(sample),
            0 => Err("what it says is no sample: `watch` is missing".into()),
            other => Err(format!("it says samples of version {other}, this slat reads {}", Self::VERSION)),
        }
    }
}
