use super::*;
use crate::identity::{Known, Session};
use crate::test_support::Ram;
use crate::wire::{FRAME, Writing};
use slat::SlotId;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

const PAGE: usize = PAGE_SIZE as usize;

/// Runs a receiver of 8 pages in its own thread; returns its memory.
fn receiver(senders: impl FnOnce(SocketAddr)) -> Result<Vec<u8>, MigrateError<Infallible>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut receiver = Receiver::new(Ram::default(), 8 * PAGE_SIZE);
            receiver.receive(|| listener.accept().map(|(stream, _)| stream))?;
            Ok(receiver.into_target().bytes)
        });
        senders(address);
        receiving.join().unwrap()
    })
}

fn range(slot: u32, first: u64, pages: u64) -> MemoryRange {
    MemoryRange { slot: SlotId(slot), gfns: Span::sized(Gfn(first), pages) }
}

/// A sender that says that it has 8 pages from frame 16 on.
fn greets(address: SocketAddr, known: &Known) -> Writing<TcpStream> {
    let mut to = Writing::new(TcpStream::connect(address).unwrap());
    to.greet(known, &[range(5, 16, 8)]).unwrap();
    to
}

/// A sender whose rounds may come.
fn sender(address: SocketAddr, known: &mut Known) -> Writing<TcpStream> {
    let mut to = greets(address, known);
    let (ticket, last, has) = Reading::new(to.stream()).offer().unwrap();
    assert!(known.agrees(has, last), "{known:?} {has:?}");
    known.begins(ticket);
    to.send(Frame::Begin(ticket)).unwrap();
    Reading::new(to.stream()).welcome().unwrap();
    known.welcome(ticket);
    to
}

/// The knowledge of a sender that begins under this identity.
fn begins(identity: u128) -> Known {
    Session::with_nonces(move || identity).begin()
}

fn page(to: &mut Writing<impl Write>, gfn: u64, byte: u8) {
    to.pages(Span::sized(Gfn(gfn), 1), &[byte; PAGE]).unwrap();
}

/// Sends the end of a round.
fn send_end(to: &mut Writing<impl Write>, round: u64, last: bool) -> Receipt {
    let receipt = to.receipt(round, last);
    to.send(if last { Frame::End(receipt) } else { Frame::EndOfRound(receipt) }).unwrap();
    receipt
}

/// Ends a round, and waits for its confirmation.
fn end(to: &mut Writing<TcpStream>, known: &mut Known, last: bool) {
    let receipt = send_end(to, known.confirmed.round + 1, last);
    Reading::new(to.stream()).receipt(receipt).unwrap();
    known.confirm(receipt);
}

fn go(to: &mut Writing<impl Write>) {
    to.send(Frame::Go).unwrap();
}

fn cancelled(address: SocketAddr) {
    crate::cancel(TcpStream::connect(address).unwrap()).unwrap();
}

#[test]
fn pages_of_earlier_connections_stay_and_later_ones_win() {
    let memory = receiver(|address| {
        // A stranger has found the open port.
        TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut known = begins(1);
        let mut to = sender(address, &mut known);
        for gfn in 16..20 {
            page(&mut to, gfn, 1);
        }
        end(&mut to, &mut known, false);
        page(&mut to, 17, 2);
        page(&mut to, 18, 2);
        to.flush().unwrap();
        // The connection breaks in the middle of round 2, which is sent again; one page has become zero
        // meanwhile.
        drop(to);
        let mut to = sender(address, &mut known);
        page(&mut to, 17, 3);
        to.zeroes(Span::sized(Gfn(18), 1)).unwrap();
        page(&mut to, 23, 3);
        end(&mut to, &mut known, true);
        go(&mut to);
    });
    let memory = memory.unwrap();
    let bytes: Vec<u8> = memory.chunks(PAGE).map(|page| page[0]).collect();
    assert_eq!(bytes, [1, 3, 0, 1, 0, 0, 0, 3]);
    assert!(memory.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])));
}

#[test]
fn a_migration_that_is_complete_waits_for_the_word() {
    let memory = receiver(|address| {
        let mut known = begins(1);
        let mut to = sender(address, &mut known);
        page(&mut to, 16, 1);
        known.sends(send_end(&mut to, 1, true));
        // The sender is gone before the confirmation: the guest continues there, and is migrated later.
        drop(to);
        let mut to = sender(address, &mut known);
        page(&mut to, 16, 2);
        end(&mut to, &mut known, true);
        go(&mut to);
    });
    assert_eq!(memory.unwrap()[0], 2);
}

#[test]
fn a_stream_that_is_refused_is_told_when_the_sender_gives_up() {
    let cancelled_first = receiver(cancelled).unwrap_err();
    assert!(matches!(cancelled_first, MigrateError::Cancelled));
    let refused = receiver(|address| {
        let mut to = sender(address, &mut begins(1));
        page(&mut to, 24, 1);
        to.flush().unwrap();
        // The receiver has closed the connection.
        assert!(Reading::new(to.stream()).next(&mut []).is_err());
        cancelled(address);
    });
    let says = refused.unwrap_err().to_string();
    assert_eq!(says, "the receiver refused the stream: the frames 0x18..0x19 are in no slot");
}

/// Returns how a receiver of 8 pages refuses a stream; `None` if the guest may run.
fn refused(receiver: &mut Receiver<Ram>, bytes: &[u8]) -> Option<WireError> {
    match receiver.serve(&mut Both { from: bytes, to: Vec::new() }) {
        Ok(()) => None,
        Err(MigrateError::Refused(error)) => Some(error),
        Err(error) => panic!("{error}"),
    }
}

/// A stream with both directions: input, and what was written.
struct Both<'b> {
    from: &'b [u8],
    to: Vec<u8>,
}

impl Read for &mut Both<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

impl Write for &mut Both<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The ticket of every connection that is given as bytes.
const TICKET: u128 = 0x1234;

/// A receiver of 8 pages.
fn new() -> Receiver<Ram> {
    Receiver::new(Ram::default(), 8 * PAGE_SIZE).with_nonces(|| TICKET)
}

/// The bytes of a sender that says that it has these ranges, and begins under this identity.
fn greeting(identity: u128, ranges: &[MemoryRange]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writing::new(&mut bytes);
    to.greet(&begins(identity), ranges).unwrap();
    to.send(Frame::Begin(TICKET)).unwrap();
    drop(to);
    bytes
}

fn hello(ranges: &[MemoryRange]) -> Vec<u8> {
    greeting(1, ranges)
}

#[test]
fn impossible_memory_is_refused_before_it_is_created() {
    let says = |ranges: &[MemoryRange]| refused(&mut new(), &hello(ranges)).unwrap();
    assert!(matches!(says(&[range(5, 16, 8)]), WireError::Closed), "within the limit");
    assert!(says(&[range(5, 16, 9)]).to_string().contains("the receiver 32768"));
    assert!(matches!(says(&[range(1, 0, 4), range(2, 3, 4)]), WireError::Overlap(_)));
    assert!(matches!(says(&[range(1, 4, 4), range(2, 0, 4)]), WireError::Overlap(_)), "not in order");
    assert!(matches!(says(&[range(1, 0, 4), range(1, 4, 4)]), WireError::Overlap(_)), "a slot twice");
    assert!(matches!(says(&[range(1, (1 << 52) - 1, 2)]), WireError::Length(2)), "past the last frame");
    let many = Frame::Hello { ranges: MOST_RANGES + 1 }.encode();
    assert!(matches!(refused(&mut new(), &many), Some(WireError::TooManyRanges(_))));
    // Pages before the memory is known, in no range, and across two ranges.
    let mut pages = Frame::Hello { ranges: 1 }.encode().to_vec();
    pages.extend(Frame::Pages(Span::sized(Gfn(0), 1), 0).encode());
    assert!(matches!(refused(&mut new(), &pages), Some(WireError::Unexpected(_))));
    for (first, pages) in [(0, 1), (3, 2), (8, 1), (7, 2), (14, 4), (18, 1)] {
        let mut bytes = hello(&[range(1, 1, 3), range(2, 4, 4), range(3, 17, 1)]);
        let mut to = Writing::new(&mut bytes);
        to.zeroes(Span::sized(Gfn(first), pages)).unwrap();
        to.flush().unwrap();
        drop(to);
        assert!(matches!(refused(&mut new(), &bytes), Some(WireError::Place(_))), "{first}, {pages}");
    }
}

#[test]
fn another_machine_is_refused_and_the_first_goes_on() {
    let mut receiver = new();
    assert!(matches!(refused(&mut receiver, &hello(&[range(5, 16, 8)])), Some(WireError::Closed)));
    assert!(matches!(refused(&mut receiver, &hello(&[range(5, 16, 7)])), Some(WireError::OtherMachine)));
    assert!(matches!(refused(&mut receiver, &hello(&[range(5, 16, 8)])), Some(WireError::Closed)));
}

/// A whole migration in few bytes: a range, a round with a page and zeroes, a last round, `Go`.
fn whole() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut to = Writing::new(&mut bytes);
    to.greet(&begins(1), &[range(5, 16, 8)]).unwrap();
    to.send(Frame::Begin(TICKET)).unwrap();
    page(&mut to, 17, 7);
    to.zeroes(Span::sized(Gfn(20), 2)).unwrap();
    send_end(&mut to, 1, false);
    page(&mut to, 18, 9);
    send_end(&mut to, 2, true);
    go(&mut to);
    drop(to);
    bytes
}

#[test]
fn a_changed_byte_is_refused_and_the_right_stream_is_received_after_it() {
    let whole = whole();
    assert_eq!(whole.len(), 12 * FRAME + 2 * PAGE);
    let contents =
        |at: usize| [7 * FRAME, 10 * FRAME + PAGE].iter().any(|first| (*first..first + PAGE).contains(&at));
    for at in 0..whole.len() {
        // Of the contents, which are uniform, only some bytes.
        if contents(at) && at % 97 != 0 {
            continue;
        }
        for change in [1, 2, 3, 0x80, 0xff] {
            let mut receiver = new();
            let mut changed = whole.clone();
            changed[at] ^= change;
            match receiver.serve(&mut Both { from: &changed, to: Vec::new() }) {
                Err(MigrateError::Refused(_)) => {}
                // The changed byte made a `Cancel` frame.
                Err(MigrateError::Cancelled) => assert!(at % 4 == 0 || contents(at), "{at} ^ {change:#x}"),
                other => panic!("{at} ^ {change:#x}: {other:?}"),
            }
            // The sender connects again, and begins anew, since this one notes no receipts.
            let other = [&greeting(2, &[range(5, 16, 8)]), &whole[6 * FRAME..]].concat();
            assert!(refused(&mut receiver, &other).is_none(), "{at} ^ {change:#x}");
            let memory: Vec<u8> = receiver.into_target().bytes.chunks(PAGE).map(|page| page[0]).collect();
            assert_eq!(memory, [0, 7, 9, 0, 0, 0, 0, 0], "{at} ^ {change:#x}");
        }
    }
}

#[test]
fn a_stream_that_ends_early_makes_no_guest() {
    let whole = whole();
    for len in (0..whole.len()).filter(|len| len % 61 == 0 || whole.len() - len < 30) {
        let mut receiver = new();
        assert!(matches!(refused(&mut receiver, &whole[..len]), Some(WireError::Closed)), "{len}");
    }
}

/// The test above would find a checksum that is not compared: only the checksum covers the contents.
#[test]
fn negative_control_contents_that_fit_their_checksum_are_received() {
    let mut bytes = hello(&[range(5, 16, 8)]);
    let mut to = Writing::new(&mut bytes);
    page(&mut to, 17, 8);
    send_end(&mut to, 1, true);
    go(&mut to);
    drop(to);
    let mut receiver = new();
    assert!(refused(&mut receiver, &bytes).is_none());
    assert_eq!(receiver.target().bytes[PAGE], 8);
}

/// The answers of a receiver to these bytes.
fn answers(receiver: &mut Receiver<Ram>, bytes: &[u8]) -> (Result<(), String>, Vec<u8>) {
    let mut stream = Both { from: bytes, to: Vec::new() };
    let result = receiver.serve(&mut stream).map_err(|error| error.to_string());
    (result, stream.to)
}

#[test]
fn another_identity_begins_with_memory_of_zeroes() {
    let mut receiver = new();
    let first = [&greeting(1, &[range(5, 16, 8)]), &whole()[6 * FRAME..8 * FRAME + 2 * PAGE]].concat();
    assert!(matches!(refused(&mut receiver, &first), Some(WireError::Closed)));
    assert_eq!(receiver.target().bytes[PAGE], 7, "a page of the first guest");
    // Its `Hello` alone takes nothing away.
    let hello = greeting(2, &[range(5, 16, 8)]);
    assert!(refused(&mut receiver, &hello[..5 * FRAME]).is_some());
    assert_eq!(receiver.target().bytes[PAGE], 7);
    assert!(refused(&mut receiver, &hello).is_some());
    assert!(receiver.target().bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn a_sender_that_has_seen_more_than_is_here_is_not_welcome() {
    let receipt = Receipt { round: 1, pages: 8, sum: 9 };
    let mut known = begins(1);
    known.confirm(receipt);
    let mut bytes = Vec::new();
    let mut to = Writing::new(&mut bytes);
    to.greet(&known, &[range(5, 16, 8)]).unwrap();
    to.send(Frame::Begin(TICKET)).unwrap();
    drop(to);
    let error = refused(&mut new(), &bytes).unwrap();
    assert!(
        matches!(error, WireError::Forgotten { has, confirmed } if has == Receipt::default() && confirmed == receipt)
    );
}

#[test]
fn both_sides_say_why_the_guest_cannot_be_received() {
    let (result, to) = answers(&mut new(), &hello(&[range(5, 16, 9)]));
    let why = "the sender has 36864 bytes of memory, the receiver 32768";
    assert_eq!(result.unwrap_err(), format!("the receiver refused the stream: {why}"));
    let told = Reading::new(to.as_slice()).offer().unwrap_err().to_string();
    assert_eq!(told, format!("the receiver refuses this guest: {why}"));
}

#[test]
fn a_receiver_whose_guest_runs_refuses_every_connection() {
    let mut receiver = new();
    assert!(refused(&mut receiver, &whole()).is_none());
    let before = receiver.target().bytes.clone();
    for identity in [1, 2] {
        let (result, to) = answers(&mut receiver, &greeting(identity, &[range(5, 16, 8)]));
        assert!(result.unwrap_err().contains("is over"));
        assert!(matches!(Reading::new(to.as_slice()).offer(), Err(WireError::Refused(_))));
    }
    assert_eq!(receiver.target().bytes, before);
}
