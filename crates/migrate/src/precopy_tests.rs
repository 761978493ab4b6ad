use super::*;
use crate::identity::Session;
use crate::receiver::Receiver;
use crate::source_target::{Progress, Target};
use crate::test_support::breaks::Breaks;
use slat::{DirtyPage, DirtyWord, Gfn, Hva, SlotId, SpaceId, Span};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread;

const PAGES: u64 = 1024;
const PAGE: usize = PAGE_SIZE as usize;

/// A guest whose pages are compared by one byte each. It writes when a page is read, so that the order of
/// events is fixed.
struct Guest {
    memory: Vec<u8>,
    log: BTreeSet<u64>,
    taken: BTreeSet<u64>,
    /// Pages that it writes per 16 pages read, at full speed.
    speed: u64,
    slowed_down: u8,
    runs: bool,
    read: u64,
    next: u64,
    /// The events, in order.
    calls: Vec<&'static str>,
    session: Session,
    flaw: Option<Flaw>,
    /// May end the migration or the connection.
    watch: fn(Progress) -> ControlFlow<()>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    /// Negative control: pages that are given back are forgotten.
    Forgets,
    /// No page can be read.
    Unreadable,
    /// It says that all pages are in one slot.
    Strays,
    /// Panics where harvested pages are given back after another panic.
    PanicsAgain,
    /// Panics where they are committed.
    PanicsInCommit,
}

impl Guest {
    fn new(speed: u64) -> Self {
        Self {
            memory: vec![1; PAGES as usize],
            log: (0..PAGES).collect(),
            taken: BTreeSet::new(),
            speed,
            slowed_down: 0,
            runs: true,
            read: 0,
            next: 0,
            calls: Vec::new(),
            session: Session::new(),
            flaw: None,
            watch: |_| Continue(()),
        }
    }
}

impl Source for Guest {
    type Error = io::Error;

    fn ranges(&self) -> Vec<MemoryRange> {
        let range =
            |slot, first| MemoryRange { slot: SlotId(slot), gfns: Span::sized(Gfn(first), PAGES / 2) };
        vec![range(0, PAGES / 2), range(1, 0)]
    }

    fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn mark_all(&mut self) -> io::Result<()> {
        self.log.extend(0..PAGES);
        Ok(())
    }

    fn harvest(&mut self) -> io::Result<Vec<DirtyWord>> {
        assert!(self.taken.is_empty(), "neither committed nor given back");
        self.taken = std::mem::take(&mut self.log);
        let strays = self.flaw == Some(Flaw::Strays);
        let words = (0..PAGES / 64).map(|word| {
            let page = word * 64;
            let bits = self.taken.range(page..page + 64).fold(0, |bits, page| bits | 1 << (page % 64));
            // As `ranges` says.
            let (slot, space) = (SlotId(u32::from(page < PAGES / 2)), SpaceId(0));
            let number = if strays { page } else { page % (PAGES / 2) };
            let slot = if strays { SlotId(1) } else { slot };
            let (gfn, hva, page) = (Gfn(page), Hva(page << 12), number);
            DirtyWord { first: DirtyPage { space, slot, page, gfn, hva }, bits }
        });
        Ok(words.filter(|word| word.bits != 0).collect())
    }

    fn commit(&mut self) {
        if self.flaw == Some(Flaw::PanicsInCommit) {
            resume_unwind(Box::new(()));
        }
        self.taken.clear();
    }

    fn give_back(&mut self) {
        if self.flaw == Some(Flaw::Forgets) {
            self.taken.clear();
        }
        if self.flaw == Some(Flaw::PanicsAgain) && !self.taken.is_empty() && thread::panicking() {
            resume_unwind(Box::new(()));
        }
        self.log.append(&mut self.taken);
    }

    fn read(&mut self, first: DirtyPage, contents: &mut [u8]) -> io::Result<()> {
        if self.flaw == Some(Flaw::Unreadable) {
            return Err(io::Error::other("bad page"));
        }
        for (page, contents) in (first.gfn.0..).zip(contents.chunks_mut(PAGE)) {
            contents.fill(self.memory[page as usize]);
            self.read += 1;
            let slow = u64::from(100 - self.slowed_down);
            if self.runs && self.read.is_multiple_of(16) {
                for _ in 0..self.speed * slow / 100 {
                    // Any page, not only those still to come in this round.
                    self.next = (self.next + 7) % PAGES;
                    self.memory[self.next as usize] = self.memory[self.next as usize].wrapping_add(1);
                    self.log.insert(self.next);
                }
            }
        }
        Ok(())
    }

    fn halt(&mut self) -> io::Result<()> {
        self.runs = false;
        self.calls.push("halt");
        Ok(())
    }

    fn resume(&mut self) {
        self.runs = true;
        self.calls.push("resume");
    }

    fn slow_down(&mut self, percent: u8) {
        self.slowed_down = percent;
        self.calls.push(if percent == 0 { "full speed" } else { "slower" });
    }

    fn progress(&mut self, progress: Progress) -> ControlFlow<()> {
        (self.watch)(progress)
    }
}

#[derive(Default)]
struct Ram(Vec<u8>);

impl Target for Ram {
    type Error = Infallible;

    fn create(&mut self, ranges: &[MemoryRange]) -> Result<(), Infallible> {
        assert_eq!(ranges[0].slot, SlotId(1), "in order of frames");
        self.0 = vec![0; PAGES as usize];
        Ok(())
    }

    fn write(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), Infallible> {
        for (at, page) in (gfns.start.0 as usize..).zip(contents.chunks(PAGE)) {
            assert!(page.iter().all(|byte| *byte == page[0]));
            self.0[at] = page[0];
        }
        Ok(())
    }

    fn zero(&mut self, gfns: Span<Gfn>) -> Result<(), Infallible> {
        self.0[gfns.start.0 as usize..gfns.end.0 as usize].fill(0);
        Ok(())
    }
}

/// Runs a receiver in its own thread, and senders that open connections to it; returns the receiver's
/// memory.
fn with_receiver(senders: impl FnOnce(&Sender<UnixStream>)) -> Result<Vec<u8>, MigrateError<Infallible>> {
    let (open, opened) = channel();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let mut receiver = Receiver::new(Ram::default(), PAGES * PAGE_SIZE);
            receiver.receive(|| opened.recv().map_err(io::Error::other))?;
            Ok(receiver.into_target().0)
        });
        senders(&open);
        drop(open);
        receiving.join().unwrap()
    })
}

fn connect(open: &Sender<UnixStream>) -> io::Result<UnixStream> {
    let (here, there) = UnixStream::pair()?;
    open.send(there).map_err(io::Error::other)?;
    Ok(here)
}

/// A speed at which all of the memory takes 40 ms.
const LIMIT: u64 = PAGES * PAGE_SIZE * 25;

#[test]
fn the_guest_is_halted_once_the_rest_fits_the_downtime() {
    let mut guest = Guest::new(4);
    let memory = with_receiver(|open| {
        let settings = PreCopy::new().bandwidth(LIMIT / 5).downtime(Duration::from_millis(45));
        let outcome = settings.send(&mut guest, || connect(open)).unwrap();
        let told: Vec<u64> = outcome.rounds.iter().map(|round| round.told).collect();
        // A quarter of each round's pages is written while it is sent. Sending takes at least 51 ms for round
        // 2, and 13 ms for round 3.
        assert_eq!(told[..3], [PAGES, PAGES / 4, PAGES / 16]);
        assert!(outcome.rounds[2].last && told.len() == 3);
        assert_eq!(outcome.rounds[0].slowed_down, 0);
    });
    assert_eq!(guest.calls, ["halt"]);
    assert_eq!(memory.unwrap(), guest.memory);
}

#[test]
fn the_guest_is_halted_for_the_last_round_at_the_latest() {
    for most in [1, 2, 5] {
        let mut guest = Guest::new(16);
        let memory = with_receiver(|open| {
            let settings = PreCopy::new().max_rounds(most).downtime(Duration::ZERO);
            let outcome = settings.send(&mut guest, || connect(open)).unwrap();
            assert_eq!(outcome.rounds.len() as u64, most);
            assert!(
                outcome.rounds.iter().all(|round| round.received && round.last == (round.number == most))
            );
        });
        assert_eq!(memory.unwrap(), guest.memory);
    }
}

/// The guest writes as fast as pages are sent, so without auto-converge no round becomes shorter.
#[test]
fn auto_converge_slows_a_guest_down_that_writes_too_fast() {
    let rounds = |settings: PreCopy| {
        let (mut guest, mut rounds) = (Guest::new(16), Vec::new());
        let memory = with_receiver(|open| {
            let settings = settings.bandwidth(LIMIT).downtime(Duration::from_millis(4)).max_rounds(20);
            rounds = settings.send(&mut guest, || connect(open)).unwrap().rounds;
        });
        assert_eq!(memory.unwrap(), guest.memory);
        rounds
    };
    let without = rounds(PreCopy::new());
    assert_eq!(without.len(), 20);
    assert!(without.iter().all(|round| round.slowed_down == 0));
    let with = rounds(PreCopy::new().auto_converge());
    assert!(with.len() < 12, "{with:?}");
    let slowed: Vec<u8> = with.iter().map(|round| round.slowed_down).collect();
    assert_eq!(slowed[..4], [0, 20, 30, 40]);
}

#[test]
fn a_cancelled_guest_continues_and_the_receiver_is_told() {
    // Cancel while the guest runs, and while it is halted.
    let watches: [fn(Progress) -> ControlFlow<()>; 2] = [
        |at| if at.round == 3 && at.sent > 100 { Break(()) } else { Continue(()) },
        |at| if at.last && at.sent > 0 { Break(()) } else { Continue(()) },
    ];
    for (watch, calls) in watches.into_iter().zip([
        &["slower", "slower", "full speed"] as &[_],
        &["slower", "slower", "halt", "resume", "full speed"],
    ]) {
        let mut guest = Guest { watch, ..Guest::new(16) };
        let received = with_receiver(|open| {
            let settings = PreCopy::new().auto_converge().downtime(Duration::ZERO).max_rounds(4);
            let error = settings.send(&mut guest, || connect(open)).unwrap_err();
            assert!(matches!(error, MigrateError::Cancelled), "{error}");
        });
        assert!(matches!(received, Err(MigrateError::Cancelled)));
        assert_eq!(guest.calls, calls);
        assert!(guest.runs && guest.taken.is_empty() && !guest.log.is_empty());
    }
}

/// Connections break in the middle of frames until one holds. Nothing is lost, and pages of confirmed rounds
/// are not sent again.
#[test]
fn a_migration_goes_on_where_its_connection_broke() {
    let all = (PAGES * PAGE_SIZE) as usize;
    let mut guest = Guest::new(4);
    let memory = with_receiver(|open| {
        let mut bytes = [10, 100, 100_000, all + all / 8, 5000, usize::MAX].into_iter();
        let connect = || Ok(Breaks(connect(open)?, bytes.next().unwrap()));
        let settings = PreCopy::new().max_rounds(3).downtime(Duration::ZERO);
        let rounds = settings.send(&mut guest, connect).unwrap().rounds;
        let numbers: Vec<_> = rounds.iter().map(|round| (round.number, round.received)).collect();
        let expected =
            [(1, false), (1, false), (1, false), (1, true), (2, false), (2, false), (2, true), (3, true)];
        assert_eq!(numbers, expected);
        assert!(rounds[6].told < PAGES / 2, "{}", rounds[6].told);
    });
    assert_eq!(memory.unwrap(), guest.memory);
}

#[test]
fn another_call_goes_on_where_the_tries_are_used_up() {
    let mut guest = Guest { watch: |_| Continue(()), ..Guest::new(4) };
    let memory = with_receiver(|open| {
        let all = (PAGES * PAGE_SIZE) as usize;
        let mut bytes = [all + 100_000, 100].into_iter();
        let settings = PreCopy::new().max_rounds(2).tries(2).downtime(Duration::ZERO);
        let failing = || Ok(Breaks(connect(open)?, bytes.next().unwrap()));
        let error = settings.send(&mut guest, failing).unwrap_err();
        assert!(matches!(error, MigrateError::Failed { round: 2, tries: 2, .. }), "{error}");
        assert_eq!(guest.calls, ["halt", "resume"], "not halted before the second connection holds");
        let outcome = settings.send(&mut guest, || connect(open)).unwrap();
        assert!(outcome.rounds[0].told < PAGES / 2, "the first call's round is not sent again");
    });
    assert_eq!(memory.unwrap(), guest.memory);
}

#[test]
fn negative_control_a_log_that_forgets_what_is_given_back_loses_pages() {
    let mut guest = Guest { flaw: Some(Flaw::Forgets), ..Guest::new(4) };
    let memory = with_receiver(|open| {
        let mut bytes = [100_000, usize::MAX].into_iter();
        let connect = || Ok(Breaks(connect(open)?, bytes.next().unwrap()));
        PreCopy::new().max_rounds(2).downtime(Duration::ZERO).send(&mut guest, connect).unwrap();
    });
    assert_ne!(memory.unwrap(), guest.memory);
}

#[test]
fn an_error_of_the_guest_ends_the_migration_and_lets_it_run() {
    let mut guest = Guest { flaw: Some(Flaw::Unreadable), ..Guest::new(4) };
    let received = with_receiver(|open| {
        let error = PreCopy::new().max_rounds(1).send(&mut guest, || connect(open)).unwrap_err();
        assert_eq!(error.to_string(), "bad page");
    });
    assert!(received.is_err());
    assert_eq!(guest.calls, ["halt", "resume"]);
    assert_eq!(guest.log.len() as u64, PAGES);
}

#[test]
fn a_receiver_that_was_restarted_gets_the_whole_guest() {
    let mut guest = Guest::new(4);
    let all = (PAGES * PAGE_SIZE) as usize;
    let settings = PreCopy::new().max_rounds(2).tries(1).downtime(Duration::ZERO);
    let first = with_receiver(|open| {
        let breaks = || Ok(Breaks(connect(open)?, all + 100_000));
        settings.send(&mut guest, breaks).unwrap_err();
    });
    assert!(first.is_err());
    let identity = guest.session.identity();
    assert!(identity.is_some() && guest.log.len() < PAGES as usize / 2);
    let memory = with_receiver(|open| {
        let outcome = settings.send(&mut guest, || connect(open)).unwrap();
        assert_eq!(outcome.rounds[0].told, PAGES);
        assert_eq!(outcome.enable.as_secs(), 0);
    });
    assert_eq!(memory.unwrap(), guest.memory);
    assert_eq!(guest.session.identity(), None, "the guest has left");
}

#[test]
fn a_refused_guest_is_told_why_after_one_try() {
    struct Small;
    impl Target for Small {
        type Error = io::Error;
        fn create(&mut self, _: &[MemoryRange]) -> io::Result<()> {
            Err(io::Error::other("no huge pages are left"))
        }
        fn write(&mut self, _: Span<Gfn>, _: &[u8]) -> io::Result<()> {
            unreachable!()
        }
        fn zero(&mut self, _: Span<Gfn>) -> io::Result<()> {
            unreachable!()
        }
    }
    for most in [PAGES - 1, PAGES] {
        let mut guest = Guest::new(4);
        let mut connections = 0;
        let error = thread::scope(|scope| {
            let connect = || {
                connections += 1;
                let (here, there) = UnixStream::pair()?;
                scope.spawn(move || Receiver::new(Small, most * PAGE_SIZE).serve(there).unwrap_err());
                Ok(here)
            };
            PreCopy::new().send(&mut guest, connect).unwrap_err()
        });
        let says = if most < PAGES { "bytes of memory, the receiver" } else { "no huge pages are left" };
        assert!(
            matches!(error, MigrateError::RefusedThere(_)) && error.to_string().contains(says),
            "{error}"
        );
        assert_eq!(connections, 1);
        assert!(guest.runs && guest.calls.is_empty() && guest.log.len() as u64 == PAGES);
    }
}

#[test]
fn a_page_that_is_in_no_range_ends_the_migration() {
    let mut guest = Guest { flaw: Some(Flaw::Strays), ..Guest::new(4) };
    let received = with_receiver(|open| {
        let error = PreCopy::new().max_rounds(1).send(&mut guest, || connect(open)).unwrap_err();
        assert!(
            matches!(error, MigrateError::NotAnnounced(DirtyPage { slot: SlotId(1), page: 512, .. })),
            "{error}"
        );
    });
    assert!(received.is_err());
    assert_eq!(guest.calls, ["halt", "resume"]);
    assert_eq!(guest.log.len() as u64, PAGES);
}

#[path = "precopy_panic_tests.rs"]
mod panics;
