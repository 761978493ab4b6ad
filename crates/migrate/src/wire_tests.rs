use super::*;
use crate::identity::Session;

const PAGE: usize = PAGE_SIZE as usize;

fn gfns(first: u64, pages: u64) -> Span<Gfn> {
    Span::sized(Gfn(first), pages)
}

fn known() -> Known {
    Session::with_nonces(|| IDENTITY).begin()
}

const IDENTITY: u128 = 0x1_0000_0000_0000_0002;

fn range() -> MemoryRange {
    MemoryRange { slot: SlotId(3), gfns: gfns(16, 64) }
}

/// A stream with one range and one round, and its receipt.
fn stream() -> (Vec<u8>, Receipt) {
    let mut bytes = Vec::new();
    let mut out = Writing::new(&mut bytes);
    out.greet(&known(), &[range()]).unwrap();
    out.pages(gfns(16, 2), &[[7; PAGE], [8; PAGE]].concat()).unwrap();
    out.zeroes(gfns(20, 4)).unwrap();
    let receipt = out.receipt(1, true);
    out.send(Frame::End(receipt)).unwrap();
    out.send(Frame::Go).unwrap();
    let sent = out.bytes;
    drop(out);
    assert_eq!(sent, bytes.len() as u64);
    (bytes, receipt)
}

/// Reads frames of a stream until one is refused.
fn frames(bytes: &[u8]) -> (Vec<Frame>, WireError) {
    let mut contents = vec![0; MOST_PAGES as usize * PAGE];
    let mut from = Reading::new(bytes);
    let mut frames = Vec::new();
    loop {
        match from.next(&mut contents) {
            Ok(frame) => frames.push(frame),
            Err(error) => return (frames, error),
        }
    }
}

#[test]
fn frames_arrive_as_they_were_sent() {
    let (bytes, receipt) = stream();
    let (frames, end) = frames(&bytes);
    let Frame::EndOfRound(hello) = frames[4] else { panic!("{frames:?}") };
    assert_eq!((hello.round, hello.pages), (0, 0));
    let expected = [
        Frame::Hello { ranges: 1 },
        Frame::Identity(IDENTITY),
        Frame::Received(Receipt::default()),
        Frame::Range(range()),
        Frame::EndOfRound(hello),
        Frame::Pages(gfns(16, 2), sum_of(gfns(16, 2), &[[7; PAGE], [8; PAGE]].concat())),
        Frame::Zeroes(gfns(20, 4), sum_of(gfns(20, 4), &[])),
        Frame::End(receipt),
        Frame::Go,
    ];
    assert_eq!(frames, expected);
    assert!(matches!(end, WireError::Closed), "{end}");
    assert_eq!((receipt.round, receipt.pages), (1, 6));
}

#[test]
fn a_stream_that_ends_early_is_closed_wherever_it_ends() {
    let (bytes, _) = stream();
    for len in (0..bytes.len()).step_by(61) {
        let (_, end) = frames(&bytes[..len]);
        assert!(matches!(end, WireError::Closed), "{len}: {end}");
    }
}

#[test]
fn negative_control_a_changed_byte_is_found_out() {
    let (bytes, _) = stream();
    // Contents, places, a number of pages, a slot, the checksum itself; the last frame has none.
    let contents = 6 * FRAME + PAGE + 5;
    let zeroes = 6 * FRAME + 2 * PAGE;
    let hello = [FRAME + 8, FRAME + 23, 2 * FRAME + 8, 3 * FRAME + 8, 3 * FRAME + 16];
    let rounds = [contents, 5 * FRAME + 8, zeroes + 4, zeroes + 8, zeroes + FRAME + 16];
    for at in hello.into_iter().chain(rounds) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        let (_, end) = frames(&bytes);
        let damaged = (5 * FRAME..zeroes + FRAME).contains(&at);
        assert!(damaged == matches!(end, WireError::Damaged(_)), "{at}: {end}");
        assert!(damaged != matches!(end, WireError::Differs { .. }), "{at}: {end}");
    }
    // A missing frame and a duplicate one; each frame is intact.
    let frame = bytes[zeroes..zeroes + FRAME].to_vec();
    let without = [&bytes[..zeroes], &bytes[zeroes + FRAME..]].concat();
    let twice = [&bytes[..zeroes], &frame, &bytes[zeroes..]].concat();
    for bytes in [without, twice] {
        assert!(matches!(frames(&bytes).1, WireError::Differs { .. }));
    }
    // Two pages swapped.
    let mut bytes = bytes;
    let pages = &mut bytes[6 * FRAME..][..2 * PAGE];
    pages.rotate_left(PAGE);
    assert!(matches!(frames(&bytes).1, WireError::Damaged(_)));
}

#[test]
fn other_streams_are_refused_with_the_reason() {
    let first = |kind: u32, pages: u32, place: u64, number: u64| {
        let mut bytes = [kind.to_le_bytes(), pages.to_le_bytes()].concat();
        bytes.extend([place.to_le_bytes(), number.to_le_bytes()].concat());
        frames(&bytes).1.to_string()
    };
    assert!(first(1, 1, 1, 99).contains("is no migration"));
    assert!(first(1, 2, 1, MAGIC).contains("version 2"));
    assert!(first(14, 1025, 0, 0).contains("1025"));
    assert!(first(77, 0, 0, 0).contains("kind 77"));
    assert!(first(3, 65, 0, 0).contains("65 pages"));
    assert!(first(4, 0, 0, 0).contains("0 pages"));
    assert!(first(3, 2, u64::MAX, 0).contains("2 pages"), "the range would wrap");
    assert!(first(3, 2, (1 << 52) - 1, 0).contains("2 pages"), "past the last frame");
    assert!(first(8, 0, 1, 0).contains("unused field"));
    assert!(first(2, 1, 0, 1 << 32).contains("unused field"), "no slot has such an id");
    assert!(frames(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").1.to_string().contains("no frame is of kind"));
}

#[test]
fn only_the_receipt_for_this_round_is_one() {
    let sent = Receipt { round: 2, pages: 5, sum: 77 };
    let answer = |frame: Frame| Reading::new(frame.encode().as_slice()).receipt(sent);
    assert!(answer(Frame::Received(sent)).is_ok());
    assert!(matches!(answer(Frame::Received(Receipt { sum: 78, ..sent })), Err(WireError::Differs { .. })));
    assert!(matches!(answer(Frame::Go), Err(WireError::Unexpected(Frame::Go))));
    assert!(
        matches!(answer(Frame::Pages(gfns(0, 1), 0)), Err(WireError::Unexpected(_))),
        "no room for contents"
    );
}

#[test]
fn a_reason_arrives_cut_and_without_control_characters() {
    let refused = |why: &str| {
        let mut bytes = Vec::new();
        Writing::new(&mut bytes).refuse(why).unwrap();
        let error = Reading::new(bytes.as_slice()).welcome().unwrap_err();
        let WireError::Refused(why) = error else { panic!("{error}") };
        why
    };
    assert_eq!(refused(""), "");
    assert_eq!(refused("\x1b[31mtoo\nlarge"), " [31mtoo large");
    let long = "ä".repeat(MOST_TEXT);
    assert_eq!(refused(&long[..MOST_TEXT]), long[..MOST_TEXT]);
    assert_eq!(refused(&format!("x{long}")).len(), MOST_TEXT - 1, "no half character");
    // A changed byte is no reason.
    let mut bytes = Vec::new();
    Writing::new(&mut bytes).refuse("no").unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(Reading::new(bytes.as_slice()).welcome(), Err(WireError::Unexpected(_))));
}

/// A stream whose second write fails, and whose later writes succeed.
#[derive(Default)]
struct Stalls {
    arrived: Vec<u8>,
    writes: u32,
}

impl Write for &mut Stalls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes == 2 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.arrived.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_an_error_nothing_is_written_any_more() {
    let mut stream = Stalls::default();
    let mut out = Writing::new(&mut stream);
    out.send(Frame::Welcome).unwrap();
    // The write times out: the sender's guest runs on. Later the stream would take bytes again.
    out.send(Frame::Go).unwrap_err();
    out.send(Frame::Cancel).unwrap_err();
    drop(out);
    assert_eq!(stream.arrived, Frame::Welcome.encode());
}
