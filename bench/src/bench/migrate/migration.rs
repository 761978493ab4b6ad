//! One sample: two machines, a guest that runs on the first, and its migration to the second.
//!
//! ```text
//! fill │ run ──────────────────────────────── halt │ compare │ run
//!      │ enable, round, round, …                   │         │
//! sender's machine                             receiver's machine
//! ```

use super::checked_guest::Guest;
use super::compare::{Compared, compare};
use super::endpoint::{self, Arriving, Machine};
use super::sender::{Sender, Settings, patient, why};

use super::vcpus::Vcpus;
use indicatif::ProgressBar;
use slat::{DirtyLog, Gfn, Hva, PAGE_SIZE, Slot, SlotId};
use slat_cli::error::Error;
use slat_cli::thread::{idle, joined};
use slat_migrate::{Outcome, Receiver};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

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
        let slot = |vcpu| Slot::new(SlotId(vcpu), Gfn(u64::from(vcpu) * self.pages), self.pages, Hva(0));
        let slots: Vec<Slot> = (0..vcpus).map(slot).collect();
        let receiving =
            endpoint::Settings { log: DirtyLog::bitmap(), logs: true, sabotage_rearm: false, ..sending };
        let most = u64::from(vcpus) * self.pages * PAGE_SIZE;
        let machine = Arc::new(Machine::new(idle, &slots, sending)?);
        let guest = |slot: &Slot| Guest::new(slot.gfns, self.working_set, self.seed + u64::from(slot.id.0));
        let vcpus = Vcpus::new(slots.iter().map(guest));
        let failed = |error| Error::Machine(format!("a socket on loopback: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let receiver = listener.local_addr().map_err(failed)?;
        thread::scope(|scope| {
            // The listener is the receiver's: where it fails before it listens, the sender must hear that.
            let other = slat_cli::thread::start(scope, move || {
                let target = Arriving::new(slat_cli::thread::idle()?, receiving);
                let mut receiver = Receiver::new(target, most);
                receiver.receive(|| patient(listener.accept()?.0)).map_err(why)?;
                receiver.into_target().machine()
            });
            let sender = Sender { machine: &machine, vcpus: &vcpus, receiver, settings, bar };
            let filled = vcpus.fill(&machine);
            let migrated = filled.and_then(|()| {
                vcpus.run(&machine);
                sender.migrate(idle)
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
