//! One sample: two machines, a guest that runs on the first, and its migration to the second.
//!
//! ```text
//! fill │ run ──────────────────────────────── halt │ compare │ run
//!      │ enable, round, round, …                   │         │
//! sender's machine                             receiver's machine
//! ```

use super::checked_guest::Guest;
use super::endpoint;
use super::endpoint::{Arriving, Compared, Machine, compare};
use super::migrating_vcpus::Vcpus;
use crate::scenarios::threads_prelude::*;
use indicatif::ProgressBar;
use slat::{DirtyPage, DirtyWord};
use slat_cli::migration::{failed, patient_tcp};
use slat_migrate::{MemoryRange, Outcome, PreCopy, Progress, Receiver, Session, Source, VmLog};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::{ControlFlow, RangeInclusive};
use std::rc::Rc;

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
    pub fn sample(&self, settings: Settings, bar: &ProgressBar) -> Result<Sample> {
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

// The guest's machine as `slat-migrate` sends it, and its connections, which may break.

/// How to migrate.
#[derive(Clone, Debug)]
pub struct Settings {
    pub pre_copy: PreCopy,
    /// Rounds in which the connection breaks half-way, each once.
    pub fails: RangeInclusive<u64>,
    /// Negative control: what a failed round has harvested is committed all the same.
    pub sabotage_commit: bool,
}

/// The sending machine, and its way to the other one.
pub struct Sender<'s> {
    machine: &'s Arc<Machine>,
    vcpus: &'s Vcpus,
    settings: Settings,
    /// How far a round is, in pages.
    bar: &'s ProgressBar,
    idle: &'s mut Idle,
    log: VmLog<'s, Npt4, HostView>,
    /// The stream of the last connection.
    stream: Rc<RefCell<Option<TcpStream>>>,
    /// The last round whose connection was broken.
    broken: u64,
    /// Negative control: what the round with the broken connection has harvested is committed.
    loses: bool,
}

impl<'s> Sender<'s> {
    /// Of the guest that these vCPUs run on this machine.
    pub fn new(
        idle: &'s mut Idle,
        machine: &'s Arc<Machine>,
        vcpus: &'s Vcpus,
        settings: Settings,
        bar: &'s ProgressBar,
    ) -> Self {
        let (log, stream) = (VmLog::new(&machine.vm), Rc::default());
        Self { machine, vcpus, settings, bar, idle, log, stream, broken: 0, loses: false }
    }

    /// Migrates the guest, whose vCPUs run. See [`PreCopy::send`].
    pub fn migrate(mut self, receiver: SocketAddr) -> Result<Outcome> {
        let (pre_copy, stream) = (self.settings.pre_copy, Rc::clone(&self.stream));
        let connect = || {
            let opened = patient_tcp(TcpStream::connect(receiver)?)?;
            *stream.borrow_mut() = Some(opened.try_clone()?);
            Ok(opened)
        };
        pre_copy.send(&mut self, connect).map_err(|error| failed("", error))
    }
}

impl Source for Sender<'_> {
    type Error = Error;

    fn ranges(&self) -> Vec<MemoryRange> {
        self.machine.ranges.clone()
    }

    fn session(&mut self) -> &mut Session {
        self.log.session()
    }

    fn mark_all(&mut self) -> Result<()> {
        Ok(self.log.mark_all(self.idle, self.machine.ranges.iter().map(|range| range.slot))?)
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>> {
        Ok(self.log.harvest(self.idle)?)
    }

    fn commit(&mut self) {
        self.log.commit();
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.loses) {
            self.log.commit();
        } else {
            self.log.give_back();
        }
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<()> {
        Ok(self.machine.space.read(self.idle, first.hva, contents)?)
    }

    fn halt(&mut self) -> Result<()> {
        self.vcpus.halt()
    }

    fn resume(&mut self) {
        self.vcpus.start(self.machine, u64::MAX);
    }

    fn progress(&mut self, Progress { round, pages, sent, .. }: Progress) -> ControlFlow<()> {
        if sent == 0 {
            self.bar.reset();
            self.bar.set_length(pages);
            self.bar.set_prefix(format!("round {round}"));
        }
        self.bar.set_position(sent);
        if self.settings.fails.contains(&round) && self.broken < round && 2 * sent >= pages {
            self.broken = round;
            self.loses = self.settings.sabotage_commit;
            // As a network breaks: what was sent may have come, and nothing comes any more.
            if let Some(stream) = self.stream.take() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::migrate::checked_guest::Guest;
    use crate::scenarios::migrate::endpoint;

    #[test]
    fn where_nothing_receives_the_guest_runs_on_and_the_log_knows_all() {
        let idle = &mut slat_cli::thread::idle().unwrap();
        let log = DirtyLog::bitmap().initially_set();
        let settings =
            endpoint::Settings { vcpus: 1, log, logs: false, largest: Level::K4, sabotage_rearm: false };
        let range = MemoryRange { slot: SlotId(0), gfns: Span::sized(Gfn(64), 100) };
        let machine = &Arc::new(Machine::new(idle, &[range], settings).unwrap());
        let vcpus = &Vcpus::new([Guest::new(range.gfns, 10, 1)]);
        // A port that no listener has any more.
        let receiver = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        vcpus.run_for(machine, 0).unwrap();
        vcpus.start(machine, u64::MAX);
        // The guest stands still for the first round, each time that it is tried.
        let settings =
            Settings { pre_copy: PreCopy::new().max_rounds(1), fails: 0..=0, sabotage_commit: false };
        let bar = &ProgressBar::hidden();
        let failed =
            Sender::new(idle, machine, vcpus, settings, bar).migrate(receiver).unwrap_err().to_string();
        assert!(failed.starts_with("round 1 failed 4 times: "), "{failed}");
        vcpus.halt().unwrap();
        let harvest = machine.vm.memory().harvest_all(idle).unwrap();
        assert!(harvest.iter().map(|page| page.gfn).eq((64..164).map(Gfn)), "all of them were given back");
        harvest.commit();
        assert!(vcpus.guests()[0].lock().corrupt == 0);
    }
}
