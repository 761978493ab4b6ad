//! `slat run`: a guest's memory on slat, from a real trace to a checked byte.
//!
//! ```text
//! trace ──feed──▶ batches ──▶ vCPU threads ──▶ TLB, walk, faults ──▶ slat-mm's pages
//!                               │                        ▲
//!                               └─ oracle checks reads   └── churn moves pages meanwhile
//! ```
//! | file | idea |
//! |---|---|
//! | `args` | what users type, checked |
//! | `feed` | traces as streams of batches, shared by the vCPUs that replay them |
//! | `machine` | arena, address space, VM, and where regions are placed |
//! | `vcpus` | one thread per vCPU |
//! | `nested` | a hypervisor between the machine and the guest that replays |
//! | `churn` | the host moves pages and takes snapshots while the guest runs |
//! | `dirty_log` | which pages are written, harvested all the while |
//! | `events` | what happens in the VM, event by event, as text |
//! | `watch` | what watchers are told meanwhile |
//! | `server` | that, and the LRU's generations, on a Unix socket |
//! | `reclaimer` | what the guest has not used for long goes to swap |
//! | `figures`, `report` | what came of it, as text or JSON |

mod args;
mod churn;
mod dirty_log;
mod events;
mod feed;
pub mod figures;
mod machine;
mod nested;
mod progress;
mod reclaimer;
mod report;
mod server;
mod vcpus;
mod watch;

pub use args::{FormatName, Pages, Run};
pub use watch::{Samples, Watching};

use crate::error::Error;
use crate::top;
use machine::Machine;
use server::Socket;
use slat_mm::lru_gen::LruGen;
use slat_vcpu::nested::Nest;
use std::process::ExitCode;
use std::time::Instant;
use vcpus::On;
use watch::{Live, Sampler};

impl Run {
    /// Runs it and prints the report, with tables of format `F`. Exit status 3 says that the guest found memory that it
    /// never wrote, or that its dirty log has lost a write, or that it wrote what its hypervisor had protected.
    pub fn run_in<F: Nest>(&self) -> Result<ExitCode, Error> {
        let seed = self.seed()?;
        let sources = feed::open(&self.trace, self.strict, self.iterations)?;
        let vcpus = self.vcpus.unwrap_or(sources.len() as u32);
        let regions = self.regions(sources.len().max(vcpus as usize))?;
        let socket = self.socket().map(|(flag, path)| Socket::bind(flag, path)).transpose()?;
        let guest = feed::names(&sources);
        let machine = Machine::<F>::new(self, vcpus)?;
        let l1 = self.nested.l1::<F>(vcpus, seed);
        let on = On { machine: &machine, l1: l1.as_ref(), args: &self.nested };
        crate::thread::room_for(vcpus)?;
        let live = Live::new(vcpus);
        let sampler = Sampler::new(&machine, &live, self, guest);
        let lru_gen = LruGen::new();
        lru_gen.add("/guest", &machine.space);
        let began = Instant::now();
        let stop = crate::interrupt::flag();
        let bar = progress::Bar::new(!self.top);
        let (jobs, feeds) = feed::start(sources, vcpus as usize);
        let (outcome, told) = std::thread::scope(|scope| {
            let serving =
                socket.as_ref().map(|socket| socket.serve(scope, &lru_gen, &sampler)).transpose()?;
            let view = self.top.then(|| top::beside(scope, &sampler));
            let reclaimer = reclaimer::start(scope, &machine, self);
            let churn = churn::start(scope, &machine, self, seed);
            let harvester = dirty_log::start(scope, &machine, &live, self);
            let outcome = vcpus::run_all(&on, jobs, &regions, (&bar, &live), stop);
            churn.stop();
            let told = harvester.stop();
            drop((serving, view, reclaimer));
            Ok::<_, Error>((outcome?, told?))
        })?;
        let feeds = feeds.finish()?;
        bar.finish();
        if outcome.accesses == 0 && !outcome.interrupted {
            return Err(Error::Usage(format!(
                "no memory accesses in {}: `valgrind --tool=lackey --trace-mem=yes` prints what is read (Debian's package valgrind)",
                feeds.names
            )));
        }
        if let Some(events) = machine.vm.host().observer() {
            events.end()?;
        }
        let wall = began.elapsed();
        let nested = l1.as_ref().map(|l1| nested::compare(&machine, l1)).transpose()?;
        report::print(self, &machine, &outcome, (told.as_ref(), nested), &feeds, wall)?;
        let lost = told.map_or(0, |told| told.lost) + nested.map_or(0, |l1| l1.mistakes());
        Ok(if outcome.findings.corrupt > 0 || lost > 0 {
            ExitCode::from(3)
        } else if outcome.interrupted {
            crate::interrupt::status()
        } else {
            ExitCode::SUCCESS
        })
    }
}
