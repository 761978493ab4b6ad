//! The work around the engine, as flags: what guests and hosts do besides, which the series' machines did differently.

use crate::scenario::Unused;
use crate::threads::bench_report::params;
use serde_json::{Map, Value};
use slat_cli::flags::Switch;
use slat_sim::parts::setting::Work;
use slat_sim::scenario::Scenario;

/// A time that something takes: up to a second, in nanoseconds.
pub fn time(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(ns) if ns <= 1_000_000_000 => Ok(ns),
        _ => Err("a time in nanoseconds is a whole number up to 1000000000".into()),
    }
}

/// Flags that are not given keep the value of the scenario.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "The work around the engine")]
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
    /// A handler thread for each vCPU serves its faults (the TDP MMU series)
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "on")]
    pub handlers: Option<Switch>,
    /// A handler's own work for a fault
    #[arg(long, value_name = "NS", value_parser = time)]
    pub handler_ns: Option<u64>,
    /// The host zeroes a page that it finds
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "on")]
    pub zeroing: Option<Switch>,
    /// The host's page is there before the engine is asked, as a kernel does it; otherwise the engine asks in mid-fault
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "on")]
    pub host_first: Option<Switch>,
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
    /// Flags that have no effect in this bench, beside the others.
    pub fn unused(&self, bench: &Scenario) -> Unused {
        let flags = |(flags, why): &(&'static [&'static str], &str)| {
            let why = format!("{} {why}", bench.name);
            flags.iter().map(|&flag| (flag.to_owned(), why.clone())).collect::<Unused>()
        };
        let mut unused: Unused = bench.simulated.unused.iter().flat_map(flags).collect();
        if !self.handlers.is_some_and(Switch::is_on) {
            unused.push(("handler_ns".into(), "there are no handlers without --handlers".into()));
        }
        unused
    }

    /// The flags that are given, and `work` for the rest.
    pub fn over(&self, work: &Work) -> Work {
        Work {
            guest_ns: self.guest_ns.unwrap_or(work.guest_ns),
            exit_ns: self.exit_ns.unwrap_or(work.exit_ns),
            host_ns: self.host_ns.unwrap_or(work.host_ns),
            handlers: self.handlers.map_or(work.handlers, Switch::is_on),
            handler_ns: self.handler_ns.unwrap_or(work.handler_ns),
            zeroing: self.zeroing.map_or(work.zeroing, Switch::is_on),
            host_first: self.host_first.map_or(work.host_first, Switch::is_on),
            under_lock_ns: self.under_lock_ns.unwrap_or(work.under_lock_ns),
            mm_lines: self.mm_lines.unwrap_or(work.mm_lines),
            rest_ns: self.rest_ns.unwrap_or(work.rest_ns),
            ..work.clone()
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
