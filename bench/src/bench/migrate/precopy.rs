//! The sender: rounds while the guest runs, until what is left fits the time that the guest may stand still.
//!
//! ```text
//! enable the logs ─▶ harvest ─▶ send ─▶ received? ─▶ commit ─┐
//!                      ▲  │               │ no: give back,   │
//!                      │  │               │ connect again    │
//!                      │  │               ▼                  │
//!                      └──┼───────────────◀──────────────────┘
//!                         │ fits, or rounds are used up
//!                         ▼
//!              halt ─▶ give back ─▶ harvest ─▶ send ─▶ received? ─▶ commit, Go
//!                                                │ no: give back, the guest runs on here
//! ```
//! A round is what one harvest has told. Its bits are gone for good only when the receiver has said that it has the round
//! ([`Harvest::commit`](slat::Harvest::commit)); whatever goes wrong before returns them to the log, and with them all that
//! was written meanwhile. A page is read after the harvest that told of it, so a store that comes too late for the copy
//! is logged again.

use super::connection::{Connection, Failed, Instructions, Sent};
use super::machine::Machine;
use super::progress::Bar;
use super::vcpus::Vcpus;
use slat::table::formats::Npt4;
use slat::{DirtyWord, Idle, PAGE_SIZE};
use slat_cli::error::Error;
use slat_mm::HostView;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Harvest<'vm> = slat::Harvest<'vm, Npt4, HostView>;

/// Times that a round is tried.
const TRIES: u32 = 4;

/// How to migrate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the guest may stand still, as far as one can tell.
    pub downtime: Duration,
    /// The guest stands still for this one at the latest.
    pub max_rounds: u64,
    /// Bytes per second at most.
    pub bandwidth: Option<u64>,
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

/// One round, or one that failed.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub number: u64,
    /// Whether the receiver has it.
    pub received: bool,
    /// Whether the guest stood still.
    pub last: bool,
    /// Pages that the harvest has told of.
    pub told: u64,
    pub sent: Sent,
    pub took: Duration,
    /// In how long they were written, where it is known.
    pub written_in: Option<Duration>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In order, those that failed among them. The last one was sent while the guest stood still.
    pub rounds: Vec<Round>,
    /// Switching the logs on.
    pub enable: Duration,
    /// From the first harvest until the receiver had everything.
    pub total: Duration,
    /// From the order to halt until the receiver had everything.
    pub halted: Duration,
}

/// The sending machine, and its way to the other one.
pub struct Sender<'s> {
    pub machine: &'s Arc<Machine>,
    pub vcpus: &'s Vcpus<'s>,
    pub receiver: SocketAddr,
    pub settings: Settings,
    pub bar: &'s Bar,
}

impl Sender<'_> {
    /// Migrates the guest, whose vCPUs run. In the end they stand still, and all memory is at the receiver. Where that
    /// cannot be had they run on, and the logs know of every page that the receiver has not got.
    pub fn migrate(&self, idle: &mut Idle) -> Result<Outcome, Error> {
        let slots = self.machine.vm.slots();
        let began = Instant::now();
        slots.commit(idle, |tx| {
            self.machine.slots.iter().try_for_each(|slot| tx.set_log_dirty(slot.id, true).map(drop))
        })?;
        let (enable, began) = (began.elapsed(), Instant::now());
        let mut rounds: Vec<Round> = Vec::new();
        let (mut connection, mut number, mut tries) = (None, 1, 0);
        let mut harvested = None;
        loop {
            let mut harvest = slots.harvest_all(idle)?;
            let last = number >= self.settings.max_rounds || self.fits(&harvest, &rounds);
            let halted = Instant::now();
            if last {
                self.vcpus.halt()?;
                harvest.give_back();
                harvest = slots.harvest_all(idle)?;
            }
            let now = Instant::now();
            let before = harvested.replace(now);
            let breaks = match self.settings.fail {
                Fail::Never => false,
                Fail::AtRound(round) => number == round && tries == 0,
                Fail::EachRound => tries == 0,
            };
            let order = Instructions { number, last, breaks, bandwidth: self.settings.bandwidth };
            let mut sent = Sent::default();
            let result = self.send(idle, &mut connection, &harvest, order, &mut sent);
            // After a round that failed, what it had told of is told of again.
            let afresh = rounds.last().is_some_and(|round| round.received);
            rounds.push(Round {
                number,
                received: result.is_ok(),
                last,
                told: harvest.pages(),
                sent,
                took: now.elapsed(),
                written_in: before.filter(|_| afresh).map(|before| now - before),
            });
            match result {
                Ok(()) => {
                    harvest.commit();
                    if last {
                        return Ok(Outcome {
                            rounds,
                            enable,
                            total: began.elapsed(),
                            halted: halted.elapsed(),
                        });
                    }
                    (number, tries) = (number + 1, 0);
                }
                Err(Failed::Machine(error)) => return Err(error),
                Err(Failed::Wire(error)) => {
                    if self.settings.sabotage_commit {
                        harvest.commit();
                    } else {
                        harvest.give_back();
                    }
                    if last {
                        // The guest is not kept waiting for another connection.
                        self.vcpus.run(self.machine);
                    }
                    connection = None;
                    tries += 1;
                    if tries == TRIES {
                        return Err(Error::Machine(format!("round {number} failed {TRIES} times: {error}")));
                    }
                }
            }
        }
    }

    /// Whether this much can be sent while the guest stands still, at the speed of the last round.
    fn fits(&self, harvest: &Harvest<'_>, rounds: &[Round]) -> bool {
        let Some(round) = rounds.iter().rfind(|round| round.received) else { return false };
        let bytes_per_s = round.sent.bytes as f64 / round.took.as_secs_f64();
        (harvest.pages() * PAGE_SIZE) as f64 <= bytes_per_s * self.settings.downtime.as_secs_f64()
    }

    /// Sends a round, over a new connection where there is none.
    fn send(
        &self,
        idle: &mut Idle,
        connection: &mut Option<Connection>,
        harvest: &Harvest<'_>,
        order: Instructions,
        sent: &mut Sent,
    ) -> Result<(), Failed> {
        let connection = match connection {
            Some(connection) => connection,
            none => none.insert(Connection::new(self.receiver, self.machine)?),
        };
        let words: Vec<DirtyWord> = harvest.words().collect();
        self.bar.round(order.number, harvest.pages());
        connection.send(idle, self.machine, &words, order, sent, self.bar)?;
        if order.last {
            connection.go()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::migrate::guest::Guest;
    use crate::bench::migrate::machine;
    use crate::bench::migrate::vcpus::Shared;
    use slat::{DirtyLog, Gfn, Hva, Level, Slot, SlotId};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    #[test]
    fn where_nobody_receives_the_guest_runs_on_and_the_log_knows_all() {
        let idle = &mut slat_cli::thread::idle().unwrap();
        let log = DirtyLog::bitmap().initially_set();
        let settings =
            machine::Settings { vcpus: 1, log, logs: false, largest: Level::K4, sabotage_rearm: false };
        let slots = [Slot::new(SlotId(0), Gfn(64), 100, Hva(0))];
        let machine = &Arc::new(Machine::new(idle, &slots, settings).unwrap());
        let shared = Shared::new([Guest::new(slots[0].gfns, 10, 1)]);
        // A port that nobody listens on any more.
        let receiver = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        thread::scope(|scope| {
            let vcpus = &Vcpus::start(scope, &shared);
            vcpus.fill(machine).unwrap();
            vcpus.run(machine);
            let settings = Settings {
                downtime: Duration::from_millis(1),
                // The guest stands still for it, each time that it is tried.
                max_rounds: 1,
                bandwidth: None,
                fail: Fail::Never,
                sabotage_commit: false,
            };
            let sender = Sender { machine, vcpus, receiver, settings, bar: &Bar::new() };
            let failed = sender.migrate(idle).unwrap_err().to_string();
            assert!(failed.starts_with("round 1 failed 4 times: "), "{failed}");
            vcpus.halt().unwrap();
            let harvest = machine.vm.slots().harvest_all(idle).unwrap();
            assert!(
                harvest.iter().map(|page| page.gfn).eq((64..164).map(Gfn)),
                "all of them were given back"
            );
            harvest.commit();
        });
        assert!(shared.guests[0].lock().corrupt == 0);
    }
}
