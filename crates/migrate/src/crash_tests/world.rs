//! Several guests that are sent to one address, and the receivers there.

use super::network::{Here, Plan, Random, There, connection, replay};
use super::stamped_guest::{Event, Guest, PAGES, wrong_pages};
use crate::error::MigrateError;
use crate::identity::Session;
use crate::precopy::PreCopy;
use crate::receiver::{Ignores, Receiver};
use crate::test_support::Ram;
use slat::PAGE_SIZE;
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// At least the bytes of a connection up to the end of a round of all pages.
pub const WHOLE_ROUND: u64 = PAGES * (PAGE_SIZE + 24) + 300;

/// The mistake of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// A receiver lets every sender continue.
    IgnoresIdentity,
    /// A receiver does not tell which connection was its last.
    IgnoresTickets,
    /// All tickets are equal.
    SameTickets,
    /// A log is not marked where the migration begins anew.
    MarksNothing,
}

/// A receiver's process.
struct Process {
    accepts: Sender<There>,
    thread: JoinHandle<Option<Ram>>,
}

impl Process {
    /// A process whose tickets begin with `tickets`.
    fn start(mistake: Mistake, mut tickets: u128) -> Self {
        let (accepts, accepted) = channel::<There>();
        let thread = thread::spawn(move || {
            let next = move || {
                tickets += u128::from(mistake != Mistake::SameTickets);
                tickets
            };
            let mut receiver = Receiver::new(Ram::default(), PAGES * PAGE_SIZE).with_nonces(next);
            receiver.ignores = match mistake {
                Mistake::IgnoresIdentity => Ignores::Identity,
                Mistake::IgnoresTickets => Ignores::Tickets,
                _ => Ignores::Nothing,
            };
            while let Ok(stream) = accepted.recv() {
                if receiver.serve(stream).is_ok() {
                    return Some(receiver.into_target());
                }
            }
            None
        });
        Self { accepts, thread }
    }

    /// Ends the process; returns the memory if a guest may run there.
    fn end(self) -> Option<Ram> {
        drop(self.accepts);
        self.thread.join().expect("the receiver does not panic")
    }
}

struct Net {
    random: Random,
    mistake: Mistake,
    process: Option<Process>,
    /// Number of processes so far.
    processes: u128,
    /// Connections that arrive later.
    late: Vec<There>,
    /// The plans of the next connections. If `None`, chance decides.
    plans: Option<Vec<Plan>>,
    /// The network is as it should be from here on.
    calm: bool,
    /// The guest has left, and runs elsewhere.
    over: bool,
    /// The finding of the oracle.
    wrong: Option<String>,
}

/// A connection of a sender.
struct Stream {
    here: Here,
    world: Weak<Shared>,
    live: bool,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.here.read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.here.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.here.flush()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade().filter(|_| self.live) {
            world.live.set(false);
            let net = &mut *world.net.borrow_mut();
            if net.plans.is_none() && net.random.percent(25) {
                // A middle box sends the connection's bytes again, or its first ones.
                let mut bytes = self.here.up.all();
                if net.random.percent(50) {
                    bytes.truncate(net.random.below(bytes.len() as u64 + 1) as usize);
                }
                net.late.push(replay(&bytes));
            }
        }
    }
}

struct Shared {
    net: RefCell<Net>,
    guests: Vec<RefCell<Guest>>,
    /// A connection is being served.
    live: Cell<bool>,
    /// Sends inside of one another.
    depth: Cell<u32>,
    /// Sessions made so far.
    identities: Rc<Cell<u128>>,
    itself: Weak<Self>,
}

pub struct World(Rc<Shared>);

impl World {
    fn new(seed: u64, mistake: Mistake, plans: Option<Vec<Plan>>) -> Self {
        let planned = plans.is_some();
        let mut random = Random(seed ^ 0x5eed);
        let number = random.below(1 << 20) + 1;
        let net = Net {
            random,
            mistake,
            process: None,
            processes: 0,
            late: Vec::new(),
            plans,
            calm: false,
            over: false,
            wrong: None,
        };
        Self(Rc::new_cyclic(|world: &Weak<Shared>| {
            let identities = Rc::new(Cell::new(0));
            let guest = |nth: u64| {
                let world = world.clone();
                let event = move || world.upgrade().map_or(Event::Nothing, |world| world.event());
                let first = if nth == 2 { 3 } else { 0 };
                let session = session(&identities);
                RefCell::new(Guest::new(
                    number + nth,
                    first,
                    session,
                    mistake == Mistake::MarksNothing,
                    Rc::new(event),
                ))
            };
            let guests = (0..if planned { 2 } else { 3 }).map(guest).collect();
            let (net, itself) = (RefCell::new(net), world.clone());
            Shared { net, guests, live: Cell::default(), depth: Cell::default(), identities, itself }
        }))
    }

    /// A world in which chance decides everything.
    pub fn random(seed: u64, mistake: Mistake) -> Self {
        Self::new(seed, mistake, None)
    }

    /// A world whose next connections have these plans, and later ones are whole.
    pub fn planned(seed: u64, mistake: Mistake, plans: Vec<Plan>) -> Self {
        Self::new(seed, mistake, Some(plans))
    }

    /// Replaces guest 1 and its sender by a copy of guest 0 and its sender, as a snapshot makes one.
    pub fn copy(&mut self) {
        let copy = self.0.guests[0].borrow().copied();
        *self.0.guests[1].borrow_mut() = copy;
    }

    /// Lets a guest store to some pages.
    pub fn store(&mut self, guest: usize) {
        (0..5).for_each(|_| self.0.guests[guest].borrow_mut().store());
    }

    /// Adds the plan of the next connection.
    pub fn plan(&mut self, plan: Plan) {
        self.0.net.borrow_mut().plans.get_or_insert_default().push(plan);
    }

    pub fn is_over(&self) -> bool {
        self.0.net.borrow().over
    }

    /// Replaces the receiver's process.
    pub fn restart(&mut self) -> Result<(), String> {
        self.0.net.borrow_mut().restart();
        self.wrong()
    }

    fn wrong(&self) -> Result<(), String> {
        self.0.net.borrow().wrong.clone().map_or(Ok(()), Err)
    }

    /// Sends a guest until its tries are used up or it has arrived.
    pub fn send(&mut self, guest: usize) -> Result<(), String> {
        self.0.send(guest);
        self.wrong()
    }

    /// Lets chance decide for a while, then ends all faults. Returns whether a guest has left before the faults ended.
    pub fn run(&mut self) -> Result<bool, String> {
        let sends = 1 + self.0.net.borrow_mut().random.below(5);
        for _ in 0..sends {
            let guest = self.0.net.borrow_mut().random.below(3) as usize;
            self.send(guest)?;
            if self.0.net.borrow_mut().random.percent(15) && !self.is_over() {
                self.copy();
            }
        }
        let before = self.is_over();
        self.0.net.borrow_mut().calm = true;
        for guest in 0..2 {
            self.send(guest)?;
        }
        if !self.is_over() {
            // Their ranges may differ from those of the memory there.
            self.restart()?;
            self.send(0)?;
        }
        if !self.is_over() {
            return Err("without faults it does not arrive".into());
        }
        Ok(before)
    }
}

fn session(identities: &Rc<Cell<u128>>) -> Session {
    // A session has to be `Send`, so it draws from a stretch of its own.
    let mut next = identities.replace(identities.get() + 1) << 64;
    Session::with_nonces(move || {
        next += 1;
        next
    })
}

impl Net {
    fn start(&mut self) -> &Process {
        let (mistake, processes) = (self.mistake, &mut self.processes);
        self.process.get_or_insert_with(|| {
            *processes += 1;
            Process::start(mistake, if mistake == Mistake::SameTickets { 0 } else { *processes << 64 })
        })
    }

    fn restart(&mut self) {
        if self.process.take().is_some_and(|process| process.end().is_some()) && !self.over {
            self.wrong = Some("the receiver runs a guest that its sender runs too".into());
        }
        self.start();
    }

    /// Decides what happens to a connection.
    fn chance(&mut self) -> Plan {
        let random = &mut self.random;
        let up = random.percent(50).then(|| match random.below(3) {
            0 => random.below(400),
            _ => random.below(2 * WHOLE_ROUND),
        });
        let down = random.percent(25).then(|| random.below(10 * 24));
        let flips = [(); 2].map(|()| random.percent(4).then(|| random.below(400)));
        Plan { up, down, silent: random.percent(30), flips }
    }
}

impl Shared {
    fn send(&self, number: usize) {
        let Ok(mut guest) = self.guests[number].try_borrow_mut() else { return };
        if self.net.borrow().over {
            return;
        }
        let settings = {
            let random = &mut self.net.borrow_mut().random;
            let settings = PreCopy::new().downtime(Duration::ZERO).tries(1 + random.below(3) as u32);
            settings.max_rounds(1 + random.below(4))
        };
        let settings =
            if self.net.borrow().plans.is_some() { settings.max_rounds(3).tries(1) } else { settings };
        self.depth.set(self.depth.get() + 1);
        let mut connect = || self.connect();
        let result = catch_unwind(AssertUnwindSafe(|| settings.send(&mut *guest, &mut connect)));
        self.depth.set(self.depth.get() - 1);
        match result {
            Ok(Ok(_)) => self.arrived(&guest),
            Ok(Err(MigrateError::Guest(_) | MigrateError::Refused(_))) => {
                unreachable!("its calls do not fail")
            }
            Ok(Err(error)) => {
                if std::env::var("SLAT_MIGRATION").is_ok() {
                    println!("guest {number}: {error}");
                }
                assert!(guest.runs);
            }
            Err(_) => self.panicked(number, &mut guest),
        }
        if guest.runs {
            guest.store();
        }
    }

    /// The sender's thread has ended: the guest continues, or its process has ended too.
    fn panicked(&self, number: usize, guest: &mut Guest) {
        guest.runs = true;
        let (chance, marks_nothing) = {
            let net = &mut *self.net.borrow_mut();
            (net.random.below(3), net.mistake == Mistake::MarksNothing)
        };
        match chance {
            // Another thread sends the same guest.
            0 => {}
            // The log was in that process, the guest's memory was not.
            1 => guest.session = session(&self.identities),
            // Another guest is started in its place.
            _ => {
                let other = guest.random.below(1 << 20) + (1 << 21);
                let (first, event) = (if number == 2 { 3 } else { 0 }, Rc::clone(&guest.event));
                *guest = Guest::new(other, first, session(&self.identities), marks_nothing, event);
            }
        }
    }

    /// The oracle: the sender says that the guest is the receiver's.
    fn arrived(&self, guest: &Guest) {
        let net = &mut *self.net.borrow_mut();
        assert!(!guest.runs, "it is halted");
        net.over = true;
        match net.process.take().and_then(Process::end) {
            Some(ram) => {
                let wrong = wrong_pages(&ram, guest);
                if !wrong.is_empty() {
                    net.wrong = Some(format!("both sides end without an error, wrong pages: {wrong:?}"));
                }
            }
            // The last bytes may be lost on their way: then the guest runs on no side.
            None if net.calm => net.wrong = Some("it has left, and has not arrived".into()),
            None => {}
        }
    }

    fn event(&self) -> Event {
        let chance = {
            let net = &mut *self.net.borrow_mut();
            if net.calm || net.plans.is_some() {
                return Event::Nothing;
            }
            net.random.below(100)
        };
        match chance {
            0..3 => Event::Panics,
            3..5 => Event::Cancels,
            // Another sender tries meanwhile. Its connections wait.
            5..15 if self.depth.get() < 2 => {
                let other = self.net.borrow_mut().random.below(3) as usize;
                self.send(other);
                Event::Nothing
            }
            _ => Event::Nothing,
        }
    }

    fn connect(&self) -> io::Result<Stream> {
        let by_chance = {
            let net = &*self.net.borrow();
            !net.calm && net.plans.is_none()
        };
        if by_chance && !self.live.get() && self.depth.get() < 2 && self.net.borrow_mut().random.percent(20) {
            // Another sender comes between two connections.
            let other = self.net.borrow_mut().random.below(3) as usize;
            self.send(other);
        }
        let net = &mut *self.net.borrow_mut();
        if net.over {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let mut plan = Plan::WHOLE;
        let mut waits = false;
        if by_chance {
            if net.random.percent(8) {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            plan = net.chance();
            waits = self.live.get() || net.random.percent(10);
            if !self.live.get() && net.random.percent(12) {
                net.restart();
            }
        } else if let Some(plans) = net.plans.as_mut().filter(|plans| !plans.is_empty()) {
            plan = plans.remove(0);
        }
        net.start();
        if !self.live.get() {
            // Old connections arrive before it.
            for nth in (0..net.late.len()).rev() {
                if net.random.percent(50) {
                    let late = net.late.remove(nth);
                    let _ = net.start().accepts.send(late);
                }
            }
        }
        let (here, there) = connection(plan, waits);
        if waits {
            net.late.push(there);
        } else {
            let _ = net.start().accepts.send(there);
            self.live.set(true);
        }
        Ok(Stream { here, world: self.itself.clone(), live: !waits })
    }
}
