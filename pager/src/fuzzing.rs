//! Entry points for the fuzzer: each parser of outside bytes must return a value or an error, and do nothing else.
//!
//! A sum or a hash detects accidents, not a person who computes it. So if an object has a sum, the parser also gets the
//! object with the right sum.

use crate::cache::Cache;
use crate::daemon::{Keep, Listed, Monitor, Request, Take};
use crate::journal::{Journal, MOST_READERS};
use crate::layout::{Layout, Region};
use crate::machine::collect;
use crate::store::catalog::State;
use crate::store::chunk::{MOST_STORED, Name, decompressed, expand};
use crate::store::manifest::Manifest;
use crate::store::{Hash, MOST_PACK, StoreError, WorkingSet, converse, lease, nbd_address};
use crate::uffd::PAGE;
use crate::wire::{Firecracker, HEADER, MigrationRequest, Slots, Wire, is_ok, layout, mappings, range, send};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the guests' image.
const IMAGE: u64 = 4 << 20;

/// One entry point. It panics if the parser, or the user of its result, does something wrong.
#[derive(Debug)]
pub struct EntryPoint {
    /// Kind of the input.
    pub name: &'static str,
    /// Runs the parser on these bytes.
    pub run: fn(&[u8]),
}

/// All entry points.
pub const ENTRY_POINTS: &[EntryPoint] = &[
    EntryPoint { name: "handshake", run: handshake },
    EntryPoint { name: "manifest", run: manifest },
    EntryPoint { name: "catalog", run: catalog },
    EntryPoint { name: "lease", run: lease },
    EntryPoint { name: "working set", run: working_set },
    EntryPoint { name: "chunk", run: chunk },
    EntryPoint { name: "journal", run: journal },
    EntryPoint { name: "messages of keeper and worker", run: messages },
    EntryPoint { name: "request for metrics", run: monitor },
    EntryPoint { name: "server of NBD", run: nbd },
    EntryPoint { name: "names", run: names },
    EntryPoint { name: "migration", run: migration },
];

/// Checks that an error has one short line.
fn one_line(error: &impl Display) {
    let text = error.to_string();
    assert!(!text.contains(['\n', '\r', '\x1b']), "{text:?}");
}

fn parsed<T>(result: Result<T, StoreError>) -> Option<T> {
    result.map_err(|error| one_line(&error)).ok()
}

/// Runs messages of a VMM, cut where one byte says, each with as many descriptors as another byte says.
fn handshake(bytes: &[u8]) {
    let [cut, first, second, text @ ..] = bytes else { return };
    if let Ok(mappings) = mappings(text) {
        match mappings.and_then(|(regions, size)| Ok(layout(regions, size, IMAGE)?)) {
            Ok(layout) => look_around(&layout),
            Err(error) => one_line(&error),
        }
    }
    let (Ok((vmm, pager)), Ok(null)) = (UnixStream::pair(), File::open("/dev/null")) else { return };
    let (one, other) = text.split_at(usize::from(*cut).min(text.len()));
    for (part, fds) in [(one, first), (other, second)] {
        let fds: Vec<BorrowedFd> = (0..fds % 7).map(|_| null.as_fd()).collect();
        if !part.is_empty() && send(vmm.as_fd(), part, &fds).is_err() {
            return;
        }
    }
    // So that the reader waits for no more.
    drop(vmm);
    let result = Firecracker.handshake(&pager, Duration::from_secs(10));
    one_line(&result.expect_err("none of the descriptors is a userfaultfd"));
}

/// Runs the messages of a VMM that sends a machine, cut where two bytes say, each piece with as many descriptors of
/// memory as another byte says; and requests of a VMM for pages.
fn migration(bytes: &[u8]) {
    if let Ok(head) = bytes[bytes.len().saturating_sub(HEADER)..].try_into() {
        _ = MigrationRequest::parse(head).map_err(|error| one_line(&error)).map(|request| {
            assert!(MigrationRequest::parse(&request.print()).is_ok_and(|again| again == request));
        });
        _ = is_ok(head, "it").map_err(|error| one_line(&error));
        _ = range(head).map_err(|error| one_line(&error)).map(|range| assert!(!range.is_empty()));
    }
    let [one, two, fds, text @ ..] = bytes else { return };
    if let Ok(slots) = Slots::parse(text).map_err(|error| one_line(&error)) {
        let pages = (slots.size() / PAGE as u64) as usize;
        assert!(slots.at(pages).is_none() && slots.at(pages - 1).is_some());
    }
    let memory = memfd_create("hostile", MemfdFlags::CLOEXEC).map(File::from);
    let (Ok((vmm, pager)), Ok(memory)) = (UnixStream::pair(), memory) else { return };
    if memory.set_len(IMAGE).is_err() {
        return;
    }
    // The sockets have room for all requests and answers.
    let text = &text[..text.len().min(4096)];
    let (cut, next) = (usize::from(*one).min(text.len()), usize::from(*two));
    let (first, rest) = text.split_at(cut);
    let (second, third) = rest.split_at(next.min(rest.len()));
    for (part, fds) in [(first, fds % 3), (second, fds / 3 % 3), (third, fds / 9 % 3)] {
        let fds: Vec<BorrowedFd> = (0..fds).map(|_| memory.as_fd()).collect();
        if !part.is_empty() && send(vmm.as_fd(), part, &fds).is_err() {
            return;
        }
    }
    // The VMM writes no more, and reads the answers.
    _ = vmm.shutdown(std::net::Shutdown::Write);
    if let Err(error) = collect(&pager, Instant::now() + Duration::from_secs(10)) {
        one_line(&error);
    }
}

/// Checks that addresses and pages map to each other, and that no page is beyond the image.
fn look_around(layout: &Layout) {
    let pages = layout.image_pages();
    assert!(pages as u64 <= IMAGE / PAGE as u64);
    let mut seen = 0;
    for (address, range) in layout.places(0..usize::MAX) {
        let (region, page) = layout.page(address).expect("it is in a region");
        assert!(page == range.start && range.end <= pages);
        assert!(layout.pages(region.base, region.base + region.size).all(|pages| pages.end <= range.end));
        seen += range.len();
    }
    assert!(seen <= pages, "a page of the image is in one place");
    assert_eq!(layout.pages(0, u64::MAX).map(|range| range.len()).sum::<usize>(), seen);
}

/// Parses the bytes as they are, and with the right sum.
fn each(bytes: &[u8], seal: fn(&[u8]) -> Option<Vec<u8>>, parse: impl Fn(&[u8])) {
    parse(bytes);
    if let Some(sealed) = seal(bytes) {
        parse(&sealed);
    }
}

fn manifest(bytes: &[u8]) {
    each(bytes, Manifest::seal, |bytes| {
        let Some(manifest) = parsed(Manifest::parse("manifests/a", bytes)) else { return };
        let wanted =
            if manifest.overlay.is_some() { 0 } else { manifest.size.div_ceil(manifest.chunk as u64) };
        assert_eq!(manifest.chunks.len() as u64, wanted);
        assert_eq!(Manifest::parse("manifests/a", &manifest.print()).ok().as_ref(), Some(&manifest));
    });
}

fn catalog(bytes: &[u8]) {
    let seal = |bytes: &[u8]| serde_json::from_slice::<State>(bytes).ok().map(|state| state.print());
    each(bytes, seal, |bytes| {
        let Some(mut state) = parsed(State::parse(bytes)) else { return };
        assert!(State::parse(&state.print()).is_ok_and(|again| again == state));
        // As hosts use it.
        let name = Name { hash: Hash::of(bytes), epoch: state.epoch }.to_string();
        state.set("a", Some(&name));
        assert!(state.change() > state.serial);
        let uploads = state.uploads.len();
        let lost = state.begin_collection(|_, upload| upload.epoch % 2 == 0);
        assert!(state.uploads.len() + lost == uploads && state.floor() <= state.epoch);
        state.set("a", None);
        assert!(state.manifests().all(|name| Name::parse(name).is_some()));
    });
}

fn lease(bytes: &[u8]) {
    if let Some(pinned) = parsed(lease::parse("leases/a", bytes)) {
        assert!(pinned.manifests.iter().chain(&pinned.packs).all(|name| Name::parse(name).is_some()));
    }
}

fn working_set(bytes: &[u8]) {
    each(bytes, WorkingSet::seal, |bytes| {
        // The hash of the template that it names.
        let text: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
        let template = text.as_ref().and_then(|text| Hash::parse(text["template"].as_str()?));
        let template = template.unwrap_or_else(|| Hash::of(b"a"));
        let Some(Some(set)) = parsed(WorkingSet::parse("sets/a", template, bytes)) else { return };
        let mut pages = 0;
        for run in set.runs() {
            assert!(run.start < run.end);
            pages += run.len();
        }
        assert_eq!(pages, set.pages());
        assert!(set.packs().iter().all(|pack| (1..=MOST_PACK).contains(&pack.pages)));
        let again = WorkingSet::parse("sets/a", template, &set.print(template));
        assert_eq!(again.ok().flatten().as_ref(), Some(&set));
    });
}

/// Expands a small chunk, and one of the largest size.
fn chunk(bytes: &[u8]) {
    let [size, stored @ ..] = bytes else { return };
    let length = if size % 2 == 0 { PAGE } else { crate::MOST_CHUNK };
    assert!(stored.len() <= MOST_STORED);
    // A hash is never right by chance; the decompressed content must still have its length.
    assert!(parsed(expand("chunks/a", Hash::of(b"a"), stored, length)).is_none());
    if let Some(content) = parsed(decompressed("chunks/a", stored, length)) {
        assert_eq!(content.len(), length);
    }
}

/// Opens the journal of a daemon that was killed at any instant, or of another guest.
fn journal(bytes: &[u8]) {
    let region = Region { base: 1 << 30, size: IMAGE, offset: 0 };
    let Ok(layout) = Layout::new(vec![region], IMAGE) else { return };
    let memory = || -> io::Result<OwnedFd> {
        let fine = Journal::new(&layout)?.share()?;
        let [is_other, bytes @ ..] = bytes else { return Ok(fine) };
        let fd = if is_other % 8 == 0 { memfd_create("hostile", MemfdFlags::CLOEXEC)? } else { fine };
        File::from(fd.try_clone()?).write_all(bytes)?;
        Ok(fd)
    };
    let Ok(memory) = memory() else { return };
    match Journal::open(memory, &layout) {
        Ok(journal) => {
            let pages = layout.image_pages();
            assert!(journal.settled() <= pages && (0..MOST_READERS).all(|at| journal.reader(at).is_some()));
            assert!(journal.is_settled(pages) && !journal.is_away(pages));
        }
        Err(error) => one_line(&error),
    }
}

fn messages(bytes: &[u8]) {
    _ = serde_json::from_slice::<Take>(bytes);
    _ = serde_json::from_slice::<Keep>(bytes);
    _ = serde_json::from_slice::<Listed>(bytes);
    if let Err(error) = serde_json::from_slice::<Request>(bytes) {
        one_line(&error);
    }
}

/// The other end of a connection, which has written all of its bytes, and reads everything.
struct Script(Cursor<Vec<u8>>);

impl Read for Script {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // In pieces.
        let most = bytes.len().min(7);
        self.0.read(&mut bytes[..most])
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl crate::store::Stream for Script {
    fn set_patience(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

fn monitor(bytes: &[u8]) {
    let monitor = Monitor::new(Arc::new(Cache::new(0)), None);
    _ = monitor.answer(Script(Cursor::new(bytes.to_vec())));
}

fn nbd(bytes: &[u8]) {
    if let Err(error) = converse(Script(Cursor::new(bytes.to_vec())), 4) {
        one_line(&error);
    }
}

fn names(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some(name) = Name::parse(text) {
        assert_eq!(name.to_string(), text);
    }
    _ = nbd_address(text);
}
