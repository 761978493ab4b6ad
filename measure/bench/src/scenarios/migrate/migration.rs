//! One sample: two machines, a guest that runs on the first, and its migration to the second.
//!
//! ```text
//! fill │ run ──────────────────────────────── halt │ compare │ run
//!      │ enable, round, round, …                   │         │
//! sender's machine                             receiver's machine
//! ```

use super::checked_guest::Guest;
use super::endpoint;
use super::endpoint::{Arriving, Machine};
use super::migrating_vcpus::Vcpus;
use super::page_compare::{Compared, compare};
use super::sender::{Sender, Settings};
use crate::scenarios::threads_prelude::*;
use indicatif::ProgressBar;
use slat_cli::migration::{failed, patient_tcp};
use slat_migrate::{MemoryRange, Outcome, Receiver};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Accesses of each guest on the receiver's machine, for each of its pages.
const AFTER: u64 = 16;

/// The guests that migrate.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The sender's machine.
    pub sending: endpoint::Settings,
    /// Memory of each vCPU's guest, in its own slot.
    pub pages: u64,
    /// Of them the working set.
    pub working_set: u64,
    pub seed: u64,
}

/// The result of one sample.
#[derive(Clone, Debug)]
pub struct Sample {
    pub outcome: Outcome,
    /// From the order to run on the receiver's machine until each vCPU had made an access there.
    pub resume: Duration,
    pub compared: Compared,
    /// Reads of the guests, on both machines: right, and not.
    pub reads: [u64; 2],
    /// Exits of vCPUs whose rings were full.
    pub ring_full: u64,
}

impl Sample {
    /// How long the guest did not run.
    pub fn downtime(&self) -> Duration {
        self.outcome.halted + self.resume
    }
}

impl Job {
    /// One sample.
    pub fn sample(&self, settings: Settings, bar: &ProgressBar) -> Result<Sample, Error> {
        let idle = &mut idle()?;
        let (sending, vcpus) = (self.sending, self.sending.vcpus);
        let range = |vcpu| MemoryRange {
            slot: SlotId(vcpu),
            gfns: Span::sized(Gfn(u64::from(vcpu) * self.pages), self.pages),
        };
        let ranges: Vec<MemoryRange> = (0..vcpus).map(range).collect();
        let receiving =
            endpoint::Settings { log: DirtyLog::bitmap(), logs: true, sabotage_rearm: false, ..sending };
        let most = u64::from(vcpus) * self.pages * PAGE_SIZE;
        let machine = Arc::new(Machine::new(idle, &ranges, sending)?);
        let guest =
            |(nth, range): (u64, &MemoryRange)| Guest::new(range.gfns, self.working_set, self.seed + nth);
        let vcpus = Vcpus::new((0..).zip(&ranges).map(guest));
        let no_socket = |error| Error::Machine(format!("a socket on loopback: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_socket)?;
        let receiver = listener.local_addr().map_err(no_socket)?;
        thread::scope(|scope| {
            // The listener is the receiver's: where it fails before it listens, the sender must hear that.
            let other = slat_cli::thread::start(scope, move || {
                let target = Arriving::new(slat_cli::thread::idle()?, receiving);
                let mut receiver = Receiver::new(target, most);
                receiver.receive(|| patient_tcp(listener.accept()?.0)).map_err(|error| failed("", error))?;
                receiver.into_target().machine()
            });
            let filled = vcpus.run_for(&machine, 0);
            let migrated = filled.and_then(|_| {
                vcpus.start(&machine, u64::MAX);
                Sender::new(idle, &machine, &vcpus, settings, bar).migrate(receiver)
            });
            if migrated.is_err() {
                // If the receiver is gone already, so much the better.
                let _ = TcpStream::connect(receiver).map(slat_migrate::cancel);
            }
            // Where both have failed, it began there.
            let other = Arc::new(joined(other.join())?);
            let outcome = migrated?;
            let compared = compare(idle, &machine, &other, vcpus.guests())?;
            let began = Instant::now();
            let ran = vcpus.run_for(&other, AFTER * self.pages)?;
            let reads = vcpus
                .guests()
                .iter()
                .map(|guest| guest.lock())
                .fold([0; 2], |[right, wrong], guest| [right + guest.verified, wrong + guest.corrupt]);
            Ok(Sample { outcome, resume: ran - began, compared, reads, ring_full: vcpus.ring_full() })
        })
    }
}
