//! Names that scenarios use on real threads: those of [`prelude`](super::prelude), and the parts for threads. Where both have a name, it is
//! that of the threads.

pub use super::prelude::*;
pub use crate::levers::{Cell, Grid, Params};
pub use crate::parts::concurrent_latency::PhaseLatencies;
pub use crate::parts::setting::{EXCLUSIVE, READ_WRITE};
pub use crate::parts::vm_setup::{slot, with_slots};
pub use crate::scenario::{Asked, Flags, Headline, Measured, Unused};
pub use crate::threads::arithmetic::Arithmetic;
pub(crate) use crate::threads::bench_report::params;
pub use crate::threads::bench_report::{Check, Figure, Report, Row};
pub(crate) use crate::threads::flag_values::machine_error;
pub use crate::threads::flag_values::multiple_of;
pub use crate::threads::guest_memory::{GuestMemory, arena};
pub use crate::threads::harness::{Lineup, shuffle, us};
pub use crate::threads::machine_info::{Machine, cpus, pin};
pub use crate::threads::mapped_slot::{MappedSlot, is_drawn};
pub use crate::threads::samples::Series;
pub use crate::threads::software_vcpu::{no_ring, run_until_stopped, vcpu, vm_with};
pub use crate::threads::table_pool;
pub use clap::ValueEnum;
pub use parking_lot::Mutex;
pub use slat::table::formats::Npt4;
pub use slat::{DirtyLog, RingSize, Splitting, Track};
pub use slat_cli::bar::say;
pub use slat_cli::error::Error;
pub use slat_cli::interrupt;
pub use slat_cli::size::{self, size};
pub use slat_cli::thread::{idle, joined, start, window};
pub use slat_vcpu::Cpu;
pub use slat_vcpu::cpu::{Core, Program, Step};
pub use std::cell::RefCell;
pub use std::collections::BTreeMap;
pub use std::hint::black_box;
pub use std::ptr::{self, NonNull};
pub use std::sync::atomic::AtomicU64;
pub use std::thread;
pub use std::time::{Duration, Instant};

/// The result on real threads.
pub type Result<T, E = Error> = std::result::Result<T, E>;
