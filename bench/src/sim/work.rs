//! The world around the engine, as flags: what guests and hosts do besides, which the seeds' machines did differently.

use crate::bench::params;
use serde_json::{Map, Value};
use slat_sim::benches::Work;

/// A time that something takes: up to a second, in nanoseconds.
fn time(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(ns) if ns <= 1_000_000_000 => Ok(ns),
        _ => Err("a time in nanoseconds is a whole number up to 1000000000".into()),
    }
}

/// What is not given stays as the bench has it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "The world around the engine")]
pub struct WorkFlags {
    /// The guest computes between two faults
    #[arg(long, value_name = "NS", value_parser = time)]
    pub guest_ns: Option<u64>,
    /// Leaving the guest for a fault and entering it again
    #[arg(long, value_name = "NS", value_parser = time)]
    pub exit_ns: Option<u64>,
    /// The host's own fault, besides zeroing the page and outside of every lock of the MMU
    #[arg(long, value_name = "NS", value_parser = time)]
    pub host_ns: Option<u64>,
    /// A handler thread for each vCPU serves its faults (seed 003)
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub handlers: Option<bool>,
    /// A handler's own work for a fault
    #[arg(long, value_name = "NS", value_parser = time)]
    pub handler_ns: Option<u64>,
    /// The host zeroes a page that it finds
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub zeroing: Option<bool>,
    /// The host's page is there before the engine is asked, as a kernel does it; otherwise the engine asks in mid-fault
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub host_first: Option<bool>,
    /// A kernel's work under its MMU lock for a fault
    #[arg(long, value_name = "NS", value_parser = time)]
    pub under_lock_ns: Option<u64>,
    /// Read-modify-writes of shared lines in the primary MMU for a fault
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub mm_lines: Option<u32>,
    /// An ager rests between two passes
    #[arg(long, value_name = "NS", value_parser = time)]
    pub rest_ns: Option<u64>,
}

impl WorkFlags {
    /// What is given, and `work` for the rest.
    pub fn over(&self, work: &Work) -> Work {
        Work {
            guest_ns: self.guest_ns.unwrap_or(work.guest_ns),
            exit_ns: self.exit_ns.unwrap_or(work.exit_ns),
            host_ns: self.host_ns.unwrap_or(work.host_ns),
            handlers: self.handlers.unwrap_or(work.handlers),
            handler_ns: self.handler_ns.unwrap_or(work.handler_ns),
            zeroing: self.zeroing.unwrap_or(work.zeroing),
            host_first: self.host_first.unwrap_or(work.host_first),
            under_lock_ns: self.under_lock_ns.unwrap_or(work.under_lock_ns),
            mm_lines: self.mm_lines.unwrap_or(work.mm_lines),
            rest_ns: self.rest_ns.unwrap_or(work.rest_ns),
        }
    }
}

/// All of it, for reports.
pub fn told(work: &Work) -> Map<String, Value> {
    params! {
        "guest_ns": work.guest_ns,
        "exit_ns": work.exit_ns,
        "host_ns": work.host_ns,
        "host_first": work.host_first,
        "handlers": work.handlers,
        "handler_ns": work.handler_ns,
        "zeroing": work.zeroing,
        "under_lock_ns": work.under_lock_ns,
        "mm_lines": work.mm_lines,
        "rest_ns": work.rest_ns,
    }
}
