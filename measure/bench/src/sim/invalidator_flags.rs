//! Further flags of `slat sim invalidate`: the threads that invalidate, and the cases that follow.

use crate::sim::work_flags::time;
use crate::threads::bench_report::params;
use crate::threads::flag_values::HostPage;
use clap::ValueEnum;
use serde_json::{Map, Value};
use slat::{Level, PAGE_SIZE};
use slat_cli::error::Error;
use slat_cli::size::size;
use slat_sim::parts::setting::{Level as SimLevel, Over, Work};

/// The flags of simulations with invalidators.
#[derive(Clone, Debug, clap::Args)]
pub struct Beside {
    /// Threads that invalidate, each on a CPU of its own; 0: the vCPUs are alone
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1,16,64",
          value_parser = clap::value_parser!(u32).range(0..=256))]
    invalidators: Vec<u32>,
    /// Each computes for so long between two invalidations
    #[arg(long, value_name = "NS,…", value_delimiter = ',', default_value = "100000,10000,1000", value_parser = time)]
    pause_ns: Vec<u64>,
    /// Where they invalidate
    #[arg(long, value_enum, default_value = "elsewhere")]
    over: Where,
    /// The size of one invalidation: a power of two, from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    range: u64,
    /// The size of the host's pages
    #[arg(short, long, value_enum, default_value = "4k")]
    pages: HostPage,
    /// The host sleeps for so long whenever it is asked for a page
    #[arg(long, value_name = "NS", default_value = "0", value_parser = time)]
    host_sleeps_ns: u64,
}

/// See [`Over`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Where {
    /// Each in 2 MiB of its own, in another GiB than any vCPU; none of its pages is mapped
    Elsewhere,
    /// The same, and its pages are mapped; once all are gone it faults them in again
    Mapped,
    /// Each in 2 MiB of its own, in the GiB of the last vCPUs
    Near,
    /// In the 2 MiB that a vCPU faults in at that moment
    Same,
}

/// A run of each policy with each number of vCPUs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name, beside the number of vCPUs. Empty: there is only one case.
    pub name: String,
    pub work: Work,
}

impl Beside {
    /// Every number of invalidators with every pause, in the order in which they were typed; one case without invalidators.
    pub fn cases(&self, work: &Work) -> Result<Vec<Case>, Error> {
        if !self.range.is_power_of_two() || !(PAGE_SIZE..=Level::M2.bytes()).contains(&self.range) {
            return Err(Error::Usage(format!("--range: {} is no power of two from 4K to 2M", self.range)));
        }
        if self.over == Where::Mapped && self.pages != HostPage::K4 {
            return Err(Error::Usage("--over mapped: the pages that come back are of 4K: --pages 4k".into()));
        }
        let mut cases = Vec::new();
        for &invalidators in &self.invalidators {
            let pauses = if invalidators == 0 { &self.pause_ns[..1] } else { &self.pause_ns };
            cases.extend(pauses.iter().map(|&pause_ns| Case {
                name: match invalidators {
                    0 => "alone".into(),
                    many => format!("{many} every {} us", pause_ns as f64 / 1e3),
                },
                work: self.work(work, invalidators, pause_ns),
            }));
        }
        Ok(cases)
    }

    fn work(&self, work: &Work, invalidators: u32, pause_ns: u64) -> Work {
        Work {
            invalidators,
            pause_ns,
            over: match self.over {
                Where::Elsewhere => Over::Elsewhere,
                Where::Mapped => Over::Mapped,
                Where::Near => Over::Near,
                Where::Same => Over::Same,
            },
            range: self.range / PAGE_SIZE,
            host_page: match self.pages {
                HostPage::K4 => SimLevel::K4,
                HostPage::M2 => SimLevel::M2,
                HostPage::G1 => SimLevel::G1,
            },
            host_sleeps_ns: self.host_sleeps_ns,
            ..work.clone()
        }
    }

    /// The settings that all cases share, for reports.
    pub fn told(&self) -> Map<String, Value> {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        params! {
            "over": name(self.over.to_possible_value()),
            "range": self.range,
            "pages": name(self.pages.to_possible_value()),
            "host_sleeps_ns": self.host_sleeps_ns,
        }
    }
}
