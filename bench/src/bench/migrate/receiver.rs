//! The other machine: built by what the stream says, filled as pages come in, and handed over when it is complete.
//!
//! It outlives connections. One that breaks has brought some pages of a round that does not count; the sender gives that
//! round's bits back, connects again, and sends those pages once more. What rounds before have brought is here, and is
//! not sent again: were a single bit lost, its page would stay as it is, and the comparison would find it. Connections are
//! served one after another, each to its end, so a page of an old one never overwrites a page of the next.
//!
//! What comes in is written by the host, not by a guest: each page is marked in the machine's own dirty log, so that it
//! could migrate onwards at once.

use super::machine::{Machine, Settings};
use super::wire::{Frame, MOST_PAGES, Reading, WireError, Writing};
use slat::{Gfn, Hva, Idle, PAGE_SIZE, Slot, Span};
use slat_cli::error::Error;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Whoever says nothing for so long is gone.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Slots of a machine at most.
const MOST_SLOTS: u64 = 1024;

/// The machine that has come, and how. `None` where the migration was cancelled.
pub fn receive(
    idle: &mut Idle,
    listener: &TcpListener,
    settings: Settings,
    most_bytes: u64,
) -> Result<Option<Machine>, Error> {
    let mut receiver = Receiver { settings, most_bytes, machine: None };
    let mut refused = None;
    loop {
        let (stream, _) = listener.accept().map_err(|error| Error::Machine(format!("accept: {error}")))?;
        match receiver.serve(idle, &stream) {
            Ok(true) => return Ok(receiver.machine),
            Ok(false) => {
                // The sender has given up, and knows that its connections were closed. This is why.
                let why = |error| Error::Machine(format!("the receiver refused the stream: {error}"));
                return refused.map_or(Ok(None), |error| Err(why(error)));
            }
            Err(Failed::Machine(error)) => return Err(error),
            // The sender finds its end closed, and decides.
            Err(Failed::Wire(WireError::Closed)) => {}
            Err(Failed::Wire(error)) => refused = Some(error),
        }
    }
}

/// Why a connection ended.
enum Failed {
    Wire(WireError),
    Machine(Error),
}

impl<E: Into<WireError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Wire(error.into())
    }
}

struct Receiver {
    settings: Settings,
    most_bytes: u64,
    machine: Option<Machine>,
}

impl Receiver {
    /// One connection; whether the guest is to run here, or there is no migration.
    fn serve(&mut self, idle: &mut Idle, stream: &TcpStream) -> Result<bool, Failed> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut from, mut to) = (Reading::new(stream), Writing::new(stream));
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let slots = match from.next(&mut [])? {
            Frame::Hello { slots } if slots <= MOST_SLOTS => slots,
            Frame::Cancel => return Ok(false),
            other => return Err(WireError::Unexpected(other).into()),
        };
        let machine = self.machine(idle, &mut from, slots)?;
        let mut complete = false;
        loop {
            match from.next(&mut contents)? {
                Frame::Pages(gfns) if !complete => {
                    let hvas = machine.hvas(gfns)?;
                    let contents = &contents[..(gfns.len() * PAGE_SIZE) as usize];
                    machine.space.write(idle, hvas.start, contents).map_err(failed)?;
                    machine.vm.mark_dirty(hvas);
                }
                Frame::Zeroes(gfns) if !complete => {
                    let hvas = machine.hvas(gfns)?;
                    machine.space.dontneed(idle, hvas).map_err(failed)?;
                    machine.vm.mark_dirty(hvas);
                }
                Frame::EndOfRound(receipt) if !complete => {
                    to.send(Frame::Received(receipt))?;
                    to.flush()?;
                }
                Frame::End(receipt) if !complete => {
                    complete = true;
                    to.send(Frame::Received(receipt))?;
                    to.flush()?;
                }
                Frame::Go if complete => return Ok(true),
                other => return Err(WireError::Unexpected(other).into()),
            }
        }
    }

    /// The machine that the next frames describe: a new one, or the one that is here already.
    fn machine(
        &mut self,
        idle: &mut Idle,
        from: &mut Reading<&TcpStream>,
        count: u64,
    ) -> Result<&Machine, Failed> {
        let (mut slots, mut bytes) = (Vec::new(), 0);
        for _ in 0..count {
            match from.next(&mut [])? {
                Frame::Slot { id, gfns } => {
                    bytes += gfns.len() * PAGE_SIZE;
                    slots.push(Slot::new(id, gfns.start, gfns.len(), Hva(0)));
                }
                other => return Err(WireError::Unexpected(other).into()),
            }
        }
        let told = |machine: &Machine| {
            let same = |(a, b): (&Slot, &Slot)| (a.id, a.gfns) == (b.id, b.gfns);
            machine.slots.len() == slots.len() && machine.slots.iter().zip(&slots).all(same)
        };
        match &self.machine {
            Some(machine) if told(machine) => {}
            Some(_) => {
                return Err(Failed::Machine(Error::Machine("the sender is another machine now".into())));
            }
            None if bytes > self.most_bytes => {
                let more =
                    format!("the sender has {bytes} bytes of memory, the receiver {}", self.most_bytes);
                return Err(Failed::Machine(Error::Machine(more)));
            }
            None => {}
        }
        match &mut self.machine {
            Some(machine) => Ok(machine),
            machine => {
                let new = Machine::new(idle, &slots, self.settings).map_err(Failed::Machine)?;
                Ok(machine.insert(new))
            }
        }
    }
}

impl Machine {
    /// Where frames of one slot lie.
    fn hvas(&self, gfns: Span<Gfn>) -> Result<Span<Hva>, WireError> {
        let slot = self.slots.iter().find(|slot| slot.gfns.covers(&gfns)).ok_or(WireError::Place(gfns))?;
        Ok(Span::sized(slot.hva_of(gfns.start), gfns.len() * PAGE_SIZE))
    }
}

fn failed(error: slat_mm::MmError) -> Failed {
    Failed::Machine(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::{DirtyLog, Level, SlotId};
    use slat_cli::thread;
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr};

    const PAGE: usize = PAGE_SIZE as usize;

    /// A receiver in a thread of its own, and what it hands over in the end: all of its memory.
    fn receiver(senders: impl FnOnce(SocketAddr)) -> Result<Option<Vec<u8>>, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let settings = Settings {
            vcpus: 1,
            log: DirtyLog::bitmap(),
            logs: true,
            largest: Level::K4,
            sabotage_rearm: false,
        };
        std::thread::scope(|scope| {
            let address = listener.local_addr().unwrap();
            let receiving = slat_cli::thread::start(scope, || {
                let idle = &mut thread::idle()?;
                let machine = receive(idle, &listener, settings, 8 * PAGE_SIZE)?;
                Ok(machine.map(|machine| {
                    let mut memory = vec![1; 8 * PAGE];
                    machine.space.read(idle, machine.slots[0].hva, &mut memory).unwrap();
                    memory
                }))
            });
            senders(address);
            thread::joined(receiving.join())
        })
    }

    /// A sender that has said hello: 8 pages from frame 16 on.
    fn sender(address: SocketAddr) -> (Writing<TcpStream>, Reading<TcpStream>) {
        let stream = TcpStream::connect(address).unwrap();
        let (mut to, from) = (Writing::new(stream.try_clone().unwrap()), Reading::new(stream));
        to.greet(&[Slot::new(SlotId(5), Gfn(16), 8, Hva(0))]).unwrap();
        (to, from)
    }

    fn page(to: &mut Writing<TcpStream>, gfn: u64, byte: u8) {
        to.pages(Span::sized(Gfn(gfn), 1), &[byte; PAGE]).unwrap();
    }

    /// Ends a round that has arrived.
    fn end(to: &mut Writing<TcpStream>, from: &mut Reading<TcpStream>, round: u64, last: bool) {
        let receipt = to.end_round(round, last).unwrap();
        from.receipt(receipt).unwrap();
    }

    #[test]
    fn what_earlier_connections_brought_stays_and_later_ones_win() {
        let memory = receiver(|address| {
            // Somebody else, who found an open port.
            TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            let (mut to, mut from) = sender(address);
            for gfn in 16..20 {
                page(&mut to, gfn, 1);
            }
            end(&mut to, &mut from, 1, false);
            page(&mut to, 17, 2);
            page(&mut to, 18, 2);
            to.flush().unwrap();
            // It breaks in the middle of round 2, which is sent again: one page has gone back to zeroes meanwhile.
            drop((to, from));
            let (mut to, mut from) = sender(address);
            page(&mut to, 17, 3);
            to.zeroes(Span::sized(Gfn(18), 1)).unwrap();
            page(&mut to, 23, 3);
            end(&mut to, &mut from, 2, true);
            to.send(Frame::Go).and_then(|()| to.flush()).unwrap();
        });
        let memory = memory.unwrap().unwrap();
        let bytes: Vec<u8> = memory.chunks(PAGE).map(|page| page[0]).collect();
        assert_eq!(bytes, [1, 3, 0, 1, 0, 0, 0, 3]);
        assert!(memory.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])));
    }

    #[test]
    fn a_migration_that_is_complete_waits_for_the_word() {
        let memory = receiver(|address| {
            let (mut to, mut from) = sender(address);
            page(&mut to, 16, 1);
            end(&mut to, &mut from, 1, true);
            // The sender is gone before it said so: the guest runs on there, and comes later.
            drop((to, from));
            let (mut to, mut from) = sender(address);
            page(&mut to, 16, 2);
            end(&mut to, &mut from, 1, true);
            to.send(Frame::Go).and_then(|()| to.flush()).unwrap();
        });
        assert_eq!(memory.unwrap().unwrap()[0], 2);
    }

    #[test]
    fn a_stream_that_is_refused_is_told_when_the_sender_gives_up() {
        let cancelled = |address| {
            let mut to = Writing::new(TcpStream::connect(address).unwrap());
            to.send(Frame::Cancel).and_then(|()| to.flush()).unwrap();
        };
        assert!(receiver(cancelled).unwrap().is_none());
        let refused = receiver(|address| {
            let (mut to, mut from) = sender(address);
            page(&mut to, 24, 1);
            to.flush().unwrap();
            // It is closed.
            assert!(from.next(&mut []).is_err());
            cancelled(address);
        });
        let says = refused.unwrap_err().to_string();
        assert_eq!(says, "the receiver refused the stream: the frames 0x18..0x19 are in no slot");
        let large = receiver(|address| {
            let mut to = Writing::new(TcpStream::connect(address).unwrap());
            to.greet(&[Slot::new(SlotId(5), Gfn(16), 9, Hva(0))]).and_then(|()| to.flush()).unwrap();
        });
        assert!(large.unwrap_err().to_string().contains("the receiver 32768"));
    }
}
