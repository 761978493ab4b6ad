//! `slat run`: replays a trace in a guest on slat, and checks every byte that the guest reads.
//!
//! ```text
//! trace ──feed──▶ batches ──▶ vCPU threads ──▶ TLB, walk, faults ──▶ slat-mm's pages
//!                               │                        ▲
//!                               └─ oracle checks reads   └── churn moves pages meanwhile
//! ```
//! | file | contents |
//! |---|---|
//! | `args`, `migrate_flags`, `choices` | the flags, those of a migration, and the named values of some |
//! | `address` | a TCP or Unix socket by its typed address |
//! | `feed` | traces as streams of batches, shared by the vCPUs that replay them |
//! | `guest_vm` | the guest's VM, its host memory, and the placement of regions |
//! | `vcpus` | one thread per vCPU |
//! | `nested` | L1, a hypervisor between the machine and the guest that replays |
//! | `churn` | a thread that moves pages and takes snapshots while the guest runs |
//! | `dirty_log` | a thread that harvests the dirty log and checks it |
//! | `events` | the VM's events as text |
//! | `watch` | samples for watchers |
//! | `server` | samples, and the LRU's generations, on a Unix socket |
//! | `ahead` | threads that evict pages and zero frames before a fault needs them |
//! | `reclaimer` | a thread that swaps out pages that the guest has not used for some time |
//! | `migrate` | a live migration of the guest to or from another process |
//! | `report` | the report, as text or JSON |

mod address;
mod ahead;
mod args;
mod choices;
mod churn;
mod dirty_log;
mod events;
mod feed;
mod guest_vm;
mod migrate;
mod migrate_flags;
mod nested;
mod reclaimer;
mod report;
mod server;
mod vcpus;
mod watch;

pub use args::Run;
pub use choices::{FormatName, Pages};

use crate::error::Error;
use crate::live::Live;
use crate::thread::{Worker, joined};
use crate::{bar, top};
use address::Address;
use guest_vm::Machine;
use indicatif::ProgressBar;
use migrate::{Arrivals, Gate, Moves};
use server::Socket;
use slat_mm::lru_gen::LruGen;
use slat_vcpu::nested::Nest;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use vcpus::Setup;
use watch::Sampler;

impl Run {
    /// A hash of what the guest replays, which both processes of a migration compare.
    fn identity(&self, traces: &str, vcpus: u32) -> u64 {
        let text = format!("{traces}\n{vcpus} {:?} {:?}", self.iterations, self.strict);
        rapidhash::v3::rapidhash_v3(text.as_bytes())
    }

    /// Accesses so far and their rate. Traces are streams, so their length is unknown.
    fn bar(&self) -> ProgressBar {
        if self.top {
            return ProgressBar::hidden();
        }
        let bar = bar::bar(None, "{spinner} {elapsed} {human_pos} accesses, {rate}");
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// Runs the replay with page tables of format `F` and prints the report. Exit status 3: the guest read memory
    /// that it never wrote, the dirty log lost a write, or L2 wrote to memory that L1 had protected.
    pub fn run_in<F: Nest>(&self) -> Result<ExitCode, Error> {
        let seed = self.seed()?;
        self.migrate.check(&self.trace)?;
        let listener = self.migrate.migrate_from.as_ref().map(Address::listen).transpose()?;
        let sources = feed::open(&self.trace, self.strict, self.iterations)?;
        let vcpus = self.vcpus.unwrap_or(sources.len() as u32);
        let regions = self.regions(sources.len().max(vcpus as usize))?;
        let socket = self.socket().map(|(flag, path)| Socket::bind(flag, path)).transpose()?;
        let guest = feed::names(&sources);
        let runs = self.identity(&guest, vcpus);
        let gate = self.migrate.migrate_to.is_some().then(|| Gate::new(vcpus));
        let arrivals = self.migrate.migrate_from.as_ref().map(Arrivals::new);
        let moves = Moves { gate: gate.as_ref(), arrivals: arrivals.as_ref() };
        let ended = AtomicBool::new(false);
        let over = || ended.load(Relaxed) || crate::interrupt::asked();
        let machine = Machine::<F>::new(self, vcpus)?;
        let l1 = self.nested.l1::<F>(vcpus, seed);
        crate::thread::room_for(vcpus)?;
        let live = Live::new(vcpus);
        let bar = self.bar();
        let setup = Setup {
            machine: &machine,
            l1: l1.as_ref(),
            args: &self.nested,
            regions: &regions,
            bar: &bar,
            live: &live,
            moves,
        };
        let sampler = Sampler::new(&machine, &live, self, guest);
        let lru_gen = LruGen::new();
        lru_gen.add("/guest", &machine.space);
        let began = Instant::now();
        let (jobs, feeds) = feed::start(sources, vcpus as usize);
        let (outcome, harvests, sent) = std::thread::scope(|scope| {
            let serving =
                socket.as_ref().map(|socket| socket.serve(scope, &lru_gen, &sampler)).transpose()?;
            let view = self.top.then(|| top::beside(scope, &sampler));
            let reclaimer = reclaimer::start(scope, &machine, self);
            let ahead = self.ahead.start(&machine);
            let churn = churn::start(scope, &machine, self, seed);
            let harvester = dirty_log::start(scope, &machine, &live, self);
            let arriving = listener.as_ref().zip(moves.arrivals).map(|(listener, arrivals)| {
                crate::thread::start(scope, || migrate::arrive(&machine, listener, runs, arrivals))
            });
            let sending = moves
                .gate
                .map(|gate| crate::thread::start(scope, || migrate::send(&machine, gate, self, runs, &over)));
            let outcome = setup.run_all(jobs, crate::interrupt::flag());
            ended.store(true, Relaxed);
            let sent = sending.map(|thread| joined(thread.join())).transpose();
            // A thread that waits for a guest ends with the process.
            let arrived = arriving.map(|thread| joined(thread.join())).transpose();
            let _ = churn.map(|churn| joined(churn.stop()));
            let harvests = harvester.map(|harvester| joined(harvester.stop())).transpose();
            // A panic of the view has been printed; the run continues.
            let _ = view.map(Worker::stop);
            drop((serving, reclaimer, ahead));
            arrived?;
            Ok::<_, Error>((outcome?, harvests?, sent))
        })?;
        let feeds = feeds.finish()?;
        bar.finish_and_clear();
        let arrived = moves.arrivals.map(Arrivals::report);
        let moved = moves.gate.is_some() || arrived.is_some();
        if outcome.accesses == 0 && !outcome.interrupted && !moved {
            return Err(Error::Usage(format!(
                "no memory accesses in {}: `valgrind --tool=lackey --trace-mem=yes` prints what is read (Debian's package \
                 valgrind); the formats of a line: {}",
                feeds.traces,
                slat_vcpu::trace::FORMATS
            )));
        }
        if let Some(events) = machine.vm.host().observer() {
            events.end()?;
        }
        let wall = began.elapsed();
        let nested = l1.as_ref().map(|l1| nested::compare(&machine, l1)).transpose()?;
        let lost = harvests.as_ref().map_or(0, |harvests| harvests.lost_pages)
            + arrived.as_ref().map_or(0, |arrived| arrived.wrong_pages)
            + nested.map_or(0, |l1| l1.mistakes());
        // A guest whose migration failed has run to its end here.
        let (sent, failed) = match sent.map(Option::flatten) {
            Ok(sent) => (sent, None),
            Err(error) => (None, Some(error)),
        };
        report::print(self, &machine, &outcome, (harvests, nested), (sent, arrived), (feeds, wall))?;
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(if outcome.findings.corrupt > 0 || lost > 0 {
            ExitCode::from(3)
        } else if outcome.interrupted {
            crate::interrupt::status()
        } else {
            ExitCode::SUCCESS
        })
    }
}
