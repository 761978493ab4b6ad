//! The guest's machine as `slat-migrate` sends it, and its connections, which may break.

use super::endpoint::Machine;
use super::vcpus::Vcpus;
use crate::bench::machine_error;
use indicatif::ProgressBar;
use slat::table::formats::Npt4;
use slat::{DirtyPage, DirtyWord, Idle};
use slat_cli::error::Error;
use slat_migrate::{MemoryRange, MigrateError, Outcome, PreCopy, Progress, Source, VmLog};
use slat_mm::HostView;
use std::cell::RefCell;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A side that sends nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to migrate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub pre_copy: PreCopy,
    pub fail: Fail,
    /// Negative control: what a failed round has harvested is committed all the same.
    pub sabotage_commit: bool,
}

/// Rounds in which the connection breaks half-way, each once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fail {
    Never,
    AtRound(u64),
    EachRound,
}

/// The sending machine, and its way to the other one.
pub struct Sender<'s> {
    pub machine: &'s Arc<Machine>,
    pub vcpus: &'s Vcpus,
    pub receiver: SocketAddr,
    pub settings: Settings,
    /// How far a round is, in pages.
    pub bar: &'s ProgressBar,
}

impl Sender<'_> {
    /// Migrates the guest, whose vCPUs run. See [`PreCopy::send`].
    pub fn migrate(&self, idle: &mut Idle) -> Result<Outcome, Error> {
        let stream = Rc::default();
        let log = VmLog::new(&self.machine.vm);
        let source =
            &mut Sending { sender: self, idle, log, stream: Rc::clone(&stream), broken: 0, loses: false };
        let connect = || {
            let opened = patient(TcpStream::connect(self.receiver)?)?;
            *stream.borrow_mut() = Some(opened.try_clone()?);
            Ok(opened)
        };
        self.settings.pre_copy.send(source, connect).map_err(why)
    }
}

/// Why a migration failed.
pub fn why(error: MigrateError<Error>) -> Error {
    match error {
        MigrateError::Guest(error) => error,
        error => machine_error(error),
    }
}

/// The stream, whose reads and writes fail after [`PATIENCE`].
pub fn patient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

struct Sending<'s> {
    sender: &'s Sender<'s>,
    idle: &'s mut Idle,
    log: VmLog<'s, Npt4, HostView>,
    /// The stream of the last connection.
    stream: Rc<RefCell<Option<TcpStream>>>,
    /// The last round whose connection was broken.
    broken: u64,
    /// Negative control: what the round with the broken connection has harvested is committed.
    loses: bool,
}

impl Source for Sending<'_> {
    type Error = Error;

    fn ranges(&self) -> Vec<MemoryRange> {
        let slots = self.sender.machine.slots.iter();
        slots.map(|slot| MemoryRange { slot: slot.id, gfns: slot.gfns }).collect()
    }

    fn start_log(&mut self) -> Result<(), Error> {
        let slots = self.sender.machine.slots.iter();
        Ok(self.log.start(self.idle, slots.map(|slot| slot.id))?)
    }

    fn harvest(&mut self) -> Result<Vec<DirtyWord>, Error> {
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

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> Result<(), Error> {
        Ok(self.sender.machine.space.read(self.idle, first.hva, contents)?)
    }

    fn halt(&mut self) -> Result<(), Error> {
        self.sender.vcpus.halt()
    }

    fn resume(&mut self) {
        self.sender.vcpus.run(self.sender.machine);
    }

    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        let bar = self.sender.bar;
        if progress.sent == 0 {
            bar.reset();
            bar.set_length(progress.pages);
            bar.set_prefix(format!("round {}", progress.round));
        }
        bar.set_position(progress.sent);
        let breaks = match self.sender.settings.fail {
            Fail::Never => false,
            Fail::AtRound(round) => progress.round == round,
            Fail::EachRound => true,
        };
        if breaks && self.broken < progress.round && 2 * progress.sent >= progress.pages {
            self.broken = progress.round;
            self.loses = self.sender.settings.sabotage_commit;
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
    use crate::bench::migrate::checked_guest::Guest;
    use crate::bench::migrate::endpoint;
    use slat::{DirtyLog, Gfn, Hva, Level, Slot, SlotId};
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn where_nothing_receives_the_guest_runs_on_and_the_log_knows_all() {
        let idle = &mut slat_cli::thread::idle().unwrap();
        let log = DirtyLog::bitmap().initially_set();
        let settings =
            endpoint::Settings { vcpus: 1, log, logs: false, largest: Level::K4, sabotage_rearm: false };
        let slots = [Slot::new(SlotId(0), Gfn(64), 100, Hva(0))];
        let machine = &Arc::new(Machine::new(idle, &slots, settings).unwrap());
        let vcpus = &Vcpus::new([Guest::new(slots[0].gfns, 10, 1)]);
        // A port that no listener has any more.
        let receiver = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        vcpus.fill(machine).unwrap();
        vcpus.run(machine);
        // The guest stands still for the first round, each time that it is tried.
        let settings =
            Settings { pre_copy: PreCopy::new().max_rounds(1), fail: Fail::Never, sabotage_commit: false };
        let sender = Sender { machine, vcpus, receiver, settings, bar: &ProgressBar::hidden() };
        let failed = sender.migrate(idle).unwrap_err().to_string();
        assert!(failed.starts_with("round 1 failed 4 times: "), "{failed}");
        vcpus.halt().unwrap();
        let harvest = machine.vm.slots().harvest_all(idle).unwrap();
        assert!(harvest.iter().map(|page| page.gfn).eq((64..164).map(Gfn)), "all of them were given back");
        harvest.commit();
        assert!(vcpus.guests()[0].lock().corrupt == 0);
    }
}
