//! One connection to the receiver, and a round over it: pages are read, told zero from not zero, and sent.

use super::machine::Machine;
use super::pace::Pace;
use super::progress::Bar;
use super::receiver::PATIENCE;
use super::wire::{Frame, MOST_PAGES, Reading, WireError, Writing};
use slat::{DirtyWord, Idle, PAGE_SIZE, Span};
use slat_cli::error::Error;
use std::net::{Shutdown, SocketAddr, TcpStream};

/// See the module's header.
pub struct Connection {
    stream: TcpStream,
    to: Writing<TcpStream>,
    from: Reading<TcpStream>,
}

/// Why a round was not received.
#[derive(Debug)]
pub enum Failed {
    /// The connection is no good any more: another one may be.
    Wire(WireError),
    /// The machine is not.
    Machine(Error),
}

impl<E: Into<WireError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Wire(error.into())
    }
}

/// How a round is sent.
#[derive(Clone, Copy, Debug)]
pub struct Instructions {
    /// Its number, from 1.
    pub number: u64,
    /// The guest stands still.
    pub last: bool,
    /// The connection breaks half-way.
    pub breaks: bool,
    /// Bytes per second at most.
    pub bandwidth: Option<u64>,
}

/// What a round has sent, be it received or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Pages that were zero.
    pub zeroes: u64,
    /// On the wire.
    pub bytes: u64,
}

impl Connection {
    /// Connects, and says hello.
    pub fn new(receiver: SocketAddr, machine: &Machine) -> Result<Self, WireError> {
        let stream = TcpStream::connect(receiver)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut to = Writing::new(stream.try_clone()?);
        to.greet(&machine.slots)?;
        Ok(Self { from: Reading::new(stream.try_clone()?), to, stream })
    }

    /// Sends a round and waits until it is received. `sent` says how far it came, in any case.
    pub fn send(
        &mut self,
        idle: &mut Idle,
        machine: &Machine,
        words: &[DirtyWord],
        order: Instructions,
        sent: &mut Sent,
        bar: &Bar,
    ) -> Result<(), Failed> {
        let mut pace = Pace::new(order.bandwidth);
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let half = words.len() / 2;
        let before = self.to.bytes;
        for (nth, word) in words.iter().enumerate() {
            if order.breaks && nth == half {
                self.cut()?;
            }
            let start = self.to.bytes;
            let result = self.word(idle, machine, word, &mut contents, sent);
            sent.bytes = self.to.bytes - before;
            result?;
            bar.sent(word.bits.count_ones().into());
            pace.sent(self.to.bytes - start);
        }
        if order.breaks && words.is_empty() {
            self.cut()?;
        }
        let receipt = self.to.end_round(order.number, order.last)?;
        sent.bytes = self.to.bytes - before;
        self.from.receipt(receipt)?;
        Ok(())
    }

    /// Lets the receiver have the guest.
    pub fn go(&mut self) -> Result<(), WireError> {
        self.to.send(Frame::Go)?;
        self.to.flush()
    }

    /// The pages of a word, neighbours together.
    fn word(
        &mut self,
        idle: &mut Idle,
        machine: &Machine,
        word: &DirtyWord,
        contents: &mut [u8],
        sent: &mut Sent,
    ) -> Result<(), Failed> {
        let mut bits = word.bits;
        while bits != 0 {
            let first = u64::from(bits.trailing_zeros());
            let pages = u64::from((!(bits >> first)).trailing_zeros()).min(MOST_PAGES - first);
            // The run was at `first`; a word of ones is one run.
            bits &= u64::MAX.checked_shl((first + pages) as u32).unwrap_or(0);
            let contents = &mut contents[..(pages * PAGE_SIZE) as usize];
            let hva = word.first.hva + first * PAGE_SIZE;
            machine.space.read(idle, hva, contents).map_err(|error| Failed::Machine(error.into()))?;
            let mut at = word.first.gfn + first;
            let mut rest = &*contents;
            while !rest.is_empty() {
                let (run, zero) = alike(rest);
                rest = &rest[run.len()..];
                let gfns = Span::sized(at, run.len() as u64 / PAGE_SIZE);
                at = gfns.end;
                if zero {
                    sent.zeroes += gfns.len();
                    self.to.zeroes(gfns)?;
                } else {
                    self.to.pages(gfns, run)?;
                }
            }
        }
        Ok(())
    }

    /// Breaks the connection as a network does: what was sent may have come, and nothing comes any more.
    fn cut(&mut self) -> Result<(), WireError> {
        self.to.flush()?;
        Ok(self.stream.shutdown(Shutdown::Both)?)
    }
}

/// The first pages that are alike, all zero or none, and whether they are zero.
fn alike(pages: &[u8]) -> (&[u8], bool) {
    let mut zero = pages.chunks_exact(PAGE_SIZE as usize).map(is_zero);
    let first = zero.next().unwrap_or(false);
    let more = zero.take_while(|&zero| zero == first).count();
    (&pages[..(1 + more) * PAGE_SIZE as usize], first)
}

/// Whether a page is.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeroes_are_told_from_others() {
        let mut pages = vec![0; 5 * PAGE_SIZE as usize];
        // The last byte of page 2; all of page 3.
        pages[3 * PAGE_SIZE as usize - 1..4 * PAGE_SIZE as usize].fill(7);
        let mut rest = pages.as_slice();
        let mut runs = Vec::new();
        while !rest.is_empty() {
            let (run, zero) = alike(rest);
            runs.push((run.len() as u64 / PAGE_SIZE, zero));
            rest = &rest[run.len()..];
        }
        assert_eq!(runs, [(2, true), (2, false), (1, true)]);
    }
}
