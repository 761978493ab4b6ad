//! Tests of devices that fail, fill up, write only a part, or return something else. One access gets the error,
//! and nothing is lost.

use crate::fixture::*;
use crate::swap::{PAGE, TempFile, contents};
use crate::vm::guest_on;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};
use slat::{Access, Fault, FaultError, Gfn, HostError, Level, Next, PAGE_SIZE, Resume, VcpuId};
use slat_mm::{AddressSpace, Arena, MmError, Swap, SwapBuilder, SwapDevice};
use std::fs::{self, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

/// A device in memory that follows instructions.
#[derive(Debug, Default)]
pub struct Disk(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    /// The size in bytes.
    room: Option<u64>,
    /// The most bytes that one call transfers.
    piece: Option<usize>,
    /// Interrupts every second call. Counts the interrupted calls.
    interrupted: Option<u64>,
    calls: u64,
    writes: u64,
    /// The error of all writes, or of all reads.
    fails_to_write: Option<i32>,
    fails_to_read: Option<i32>,
}

impl Disk {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// From now on, writes and reads fail with these errors.
    pub fn fail(&self, write: Option<i32>, read: Option<i32>) {
        self.set(|disk| (disk.fails_to_write, disk.fails_to_read) = (write, read));
    }

    /// The number of writes that succeeded.
    pub fn writes(&self) -> u64 {
        self.0.lock().writes
    }

    /// The number of reads and writes that were not refused.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Limits the device to this many bytes.
    pub fn limit(&self, room: Option<u64>) {
        self.set(|disk| disk.room = room);
    }

    fn set(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.0.lock());
    }
}

impl Inner {
    /// How many of `len` bytes this call transfers.
    fn part(&mut self, len: usize) -> Result<usize> {
        self.calls += 1;
        if self.calls % 2 == 1
            && let Some(count) = &mut self.interrupted
        {
            *count += 1;
            return Err(Error::from_raw_os_error(libc::EINTR));
        }
        Ok(len.min(self.piece.unwrap_or(len)))
    }
}

impl SwapDevice for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let mut disk = self.0.lock();
        if let Some(errno) = disk.fails_to_write {
            return Err(Error::from_raw_os_error(errno));
        }
        let mut len = disk.part(bytes.len())?;
        if let Some(room) = disk.room {
            len = len.min(room.saturating_sub(offset) as usize);
            if len == 0 {
                return Err(Error::from_raw_os_error(libc::ENOSPC));
            }
        }
        let start = offset as usize;
        let end = disk.bytes.len().max(start + len);
        disk.bytes.resize(end, 0);
        disk.bytes[start..start + len].copy_from_slice(&bytes[..len]);
        disk.writes += 1;
        Ok(len)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let mut disk = self.0.lock();
        if let Some(errno) = disk.fails_to_read {
            return Err(Error::from_raw_os_error(errno));
        }
        let len = disk.part(bytes.len())?;
        let there = disk.bytes.get(offset as usize..).unwrap_or_default();
        let len = len.min(there.len());
        bytes[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }
}

/// A machine with 16 pages that do not compress, and so go to this device.
fn machine_on(disk: &Arc<Disk>) -> (Machine, Arc<Swap>) {
    let swap = Swap::builder().memory(1 << 20).device(disk.clone(), 1 << 30).keep_copies(false);
    let (machine, swap) = Machine::with_swap(swap);
    (filled(machine), swap)
}

pub const PAGES: u64 = 16;

pub fn filled(mut machine: Machine) -> Machine {
    machine.map(0, PAGES);
    (0..PAGES).for_each(|page| machine.fill(page, &noise(page)));
    machine
}

pub fn noise(page: u64) -> Vec<u8> {
    contents(page + 1, 64)
}

/// Checks the pages that can be read: they hold what was written. Returns their number.
pub fn intact(machine: &mut Machine) -> u64 {
    let mut good = 0;
    for page in 0..PAGES {
        let mut bytes = vec![0; PAGE];
        if machine.space.read(&mut machine.idle, at(page), &mut bytes).is_ok() {
            assert_eq!(bytes, noise(page), "page {page}");
            good += 1;
        }
    }
    good
}

#[test]
fn a_device_that_stops_short_or_is_interrupted_is_asked_again() {
    for (piece, interrupted) in [(Some(1000), None), (None, Some(0)), (Some(7), Some(0))] {
        let disk = Disk::new();
        disk.set(|disk| (disk.piece, disk.interrupted) = (piece, interrupted));
        let (mut machine, swap) = machine_on(&disk);
        assert_eq!(machine.page_out(0, PAGES), PAGES);
        assert_eq!(swap.stats().file_bytes, PAGES * PAGE_SIZE);
        assert_eq!(intact(&mut machine), PAGES);
        assert!(disk.0.lock().interrupted.is_none_or(|count| count > 0));
        assert!(machine.all_free());
    }
}

#[test]
fn a_full_device_keeps_pages_where_they_are() {
    let disk = Disk::new();
    // Two and a half pages fit: the device writes a part of the third page.
    disk.limit(Some(PAGE_SIZE * 5 / 2));
    let (mut machine, swap) = machine_on(&disk);
    for round in 1..3 {
        assert_eq!(machine.page_out(0, PAGES), 2);
        assert_eq!((swap.stats().file_bytes, swap.stats().refused), (2 * PAGE_SIZE, round));
        assert!(!swap.has_room());
        assert!((2..PAGES).all(|page| machine.look(page).is_some()), "a page left its place");
        assert_eq!(intact(&mut machine), PAGES);
        assert!(swap.has_room(), "two pages came back");
    }
    disk.limit(None);
    assert_eq!(machine.page_out(0, PAGES), PAGES);
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}

/// Nor beyond the size that the swap was built with.
#[test]
fn a_device_is_not_used_beyond_its_size() {
    let disk = Disk::new();
    let swap = Swap::builder().device(disk.clone(), 3 * PAGE_SIZE + 5);
    let (machine, _swap) = Machine::with_swap(swap);
    let mut machine = filled(machine);
    for _ in 0..3 {
        assert_eq!(machine.page_out(0, PAGES), 3);
        assert_eq!(
            (intact(&mut machine), disk.0.lock().bytes.len()),
            (PAGES, 3 * PAGE),
            "blocks are used again"
        );
    }
    assert!(machine.all_free());
}

#[test]
fn a_device_that_fails_to_write_loses_nothing() {
    let disk = Disk::new();
    disk.fail(Some(libc::EIO), None);
    let (mut machine, swap) = machine_on(&disk);
    assert_eq!(machine.page_out(0, PAGES), 0);
    let stats = swap.stats();
    assert_eq!((stats.store_errors, stats.refused, stats.stored, stats.file_bytes), (PAGES, 0, 0, 0));
    assert!((0..PAGES).all(|page| machine.look(page).is_some()));
    disk.fail(None, None);
    assert_eq!(machine.page_out(0, PAGES), PAGES);
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}

#[test]
fn a_device_that_fails_to_read_fails_the_access_and_may_be_asked_again() {
    let disk = Disk::new();
    let (mut machine, swap) = machine_on(&disk);
    assert_eq!(machine.page_out(0, 8), 8);
    disk.fail(None, Some(libc::EIO));
    let failed = machine.space.read(&mut machine.idle, at(3), &mut [0]);
    assert_eq!(failed, Err(MmError::SwapIo { hva: at(3), errno: libc::EIO }));
    let text = failed.unwrap_err().to_string();
    assert!(text.contains(&at(3).to_string()) && text.contains("read back from swap"), "{text}");
    assert_eq!(intact(&mut machine), 8, "only the mapped pages can be read");
    assert_eq!((swap.stats().references, swap.stats().load_errors), (8, 9));
    disk.fail(None, None);
    assert_eq!((intact(&mut machine), swap.stats().references), (PAGES, 0));
    assert!(machine.all_free());
}

/// A bit is flipped, the blocks of two pages are exchanged, or the file is cut off. A fault on such a page
/// fails, and no other fault does.
#[test]
fn a_page_that_comes_back_as_something_else_is_an_error_and_no_other_is() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(u64, Damage); 4] = [
        (1, |bytes| bytes[5 * PAGE + 777] ^= 0x10),
        (2, |bytes| {
            let (one, other) = bytes.split_at_mut(3 * PAGE);
            one[..PAGE].swap_with_slice(&mut other[..PAGE]);
        }),
        (1, |bytes| bytes[2 * PAGE..3 * PAGE].fill(0)),
        (3, |bytes| bytes.truncate(5 * PAGE + 100)),
    ];
    for (spoiled, damage) in damages {
        let disk = Disk::new();
        let (mut machine, swap) = machine_on(&disk);
        assert_eq!(machine.page_out(0, 8), 8);
        let before = disk.0.lock().bytes.clone();
        disk.set(|disk| damage(&mut disk.bytes));
        assert_eq!(intact(&mut machine), PAGES - spoiled);
        let wrong: Vec<_> = (0..8)
            .filter_map(|page| machine.space.read(&mut machine.idle, at(page), &mut [0]).err())
            .collect();
        assert!(
            wrong.len() as u64 == spoiled
                && wrong.iter().all(|wrong| matches!(wrong, MmError::SwapCorrupt(_)))
        );
        assert_eq!(swap.stats().references, spoiled);
        disk.set(|disk| disk.bytes = before);
        assert_eq!(intact(&mut machine), PAGES, "the pages are whole once the device is");
        assert!(machine.all_free());
    }
}

/// Only the vCPU that wants the page hears of the error, at that access. The guest goes on.
#[test]
fn a_guest_hears_of_a_broken_page_and_goes_on() {
    let disk = Disk::new();
    let (mut machine, swap) = machine_on(&disk);
    let Machine { idle, space, .. } = &mut machine;
    let vm = guest_on(space, idle, PAGES);
    assert_eq!(space.pageout(idle, pages(0, 8)), Ok(8));
    disk.set(|disk| disk.bytes[3 * PAGE] ^= 1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut fault = |idle: &mut _, gfn: u64, access| vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access });
    for access in [Access::Read, Access::Write, Access::Fetch] {
        let spoiled = fault(idle, 3, access);
        assert_eq!(spoiled, Err(FaultError::Host(HostError::Poisoned)));
        assert_eq!(spoiled.unwrap_err().to_string(), "the host's memory is broken there");
    }
    assert_eq!(vm.memory().translate(idle, Gfn(3)), None);
    disk.fail(None, Some(libc::ETIMEDOUT));
    let failed = fault(idle, 4, Access::Read);
    assert_eq!(failed, Err(FaultError::Host(HostError::Io)));
    assert_eq!(failed.unwrap_err().to_string(), "the host could not read the page back");
    disk.fail(None, None);
    for gfn in (0..PAGES).filter(|&gfn| gfn != 3) {
        assert_eq!(fault(idle, gfn, Access::Write), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    }
    assert_eq!(swap.stats().references, 1);
    // A user that knows the lost contents may write the page anew, as a whole.
    space.dontneed(idle, pages(3, 1)).unwrap();
    assert_eq!(fault(idle, 3, Access::Write), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    drop(vcpu);
    drop(vm);
    machine.fill(3, &noise(3));
    assert_eq!((intact(&mut machine), swap.stats().references), (PAGES, 0));
    assert!(machine.all_free());
}

#[test]
fn a_bit_flipped_in_the_file_is_found() {
    let file = TempFile::new("flipped");
    let (machine, swap) = Machine::with_swap(Swap::builder().file(&file.0));
    let mut machine = filled(machine);
    assert_eq!((machine.page_out(0, PAGES), swap.stats().file_bytes), (PAGES, PAGES * PAGE_SIZE));
    let raw = OpenOptions::new().read(true).write(true).open(&file.0).unwrap();
    let mut byte = [0];
    raw.read_exact_at(&mut byte, 10 * PAGE_SIZE + 100).unwrap();
    raw.write_all_at(&[byte[0] ^ 4], 10 * PAGE_SIZE + 100).unwrap();
    assert_eq!((intact(&mut machine), swap.stats().load_errors), (PAGES - 1, 1));
    assert!(machine.all_free());
}

#[test]
fn a_file_has_one_user_who_leaves_nothing_in_it() {
    let file = TempFile::new("one-user");
    fs::write(&file.0, "").unwrap();
    let (machine, swap) = Machine::with_swap(Swap::builder().file(&file.0));
    let mut machine = filled(machine);
    assert_eq!(machine.page_out(0, PAGES), PAGES);
    let other = Arena::builder().limit(2 << 20).build().unwrap();
    for _ in 0..2 {
        let second = Swap::builder().overwrite(&file.0).build(&other);
        assert_eq!(second.map(drop), Err(MmError::SwapInUse));
    }
    assert_eq!(intact(&mut machine), PAGES, "a refused swap changed the file");
    let len = || fs::metadata(&file.0).unwrap().len();
    assert_eq!(len(), (1 + PAGES) * PAGE_SIZE);
    // The file as a killed process leaves it.
    let left = TempFile::new("one-user-left");
    fs::copy(&file.0, &left.0).unwrap();
    assert!(machine.all_free());
    drop(swap);
    assert_eq!(len(), 0, "guests' memory is left in the file");
    for again in [&file, &left] {
        drop(Swap::builder().file(&again.0).build(&other).unwrap());
        assert_eq!(fs::metadata(&again.0).unwrap().len(), 0);
    }

    let fresh = TempFile::new("one-user-fresh");
    let swap = Swap::builder().file(&fresh.0).build(&other).unwrap();
    let mode = fs::metadata(&fresh.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "another user may read the file");
    drop(swap);
    assert!(!fresh.0.exists(), "a file that the swap created outlives it");
}

#[test]
fn a_file_that_holds_something_else_is_refused_and_keeps_it() {
    let arena = Arena::builder().limit(2 << 20).build().unwrap();
    let file = TempFile::new("something-else");
    let swap = |builder: SwapBuilder| builder.build(&arena).map(drop);
    for text in ["a trace", "slat swap file", &"longer than any mark".repeat(1000)] {
        fs::write(&file.0, text).unwrap();
        assert_eq!(swap(Swap::builder().file(&file.0)), Err(MmError::NotSwap));
        assert_eq!(fs::read_to_string(&file.0).unwrap(), text);
    }
    assert_eq!(swap(Swap::builder().overwrite(&file.0)), Ok(()));
    assert_eq!(fs::metadata(&file.0).unwrap().len(), 0);
    for no_file in ["/dev/full", "/tmp"] {
        assert_eq!(swap(Swap::builder().overwrite(no_file)), Err(MmError::NotAFile));
    }
}

/// The answer of the kernel for a full file system.
#[derive(Debug)]
struct Full;

impl SwapDevice for Full {
    fn write_at(&self, _: &[u8], _: u64) -> Result<usize> {
        Err(Error::from_raw_os_error(libc::ENOSPC))
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        unreachable!("nothing has been written")
    }
}

#[test]
fn a_device_that_is_always_full() {
    let (machine, swap) = Machine::with_swap(Swap::builder().device(Full, 1 << 30));
    let mut machine = filled(machine);
    assert_eq!(machine.page_out(0, PAGES), 0);
    assert_eq!((swap.stats().refused, swap.stats().store_errors, swap.has_room()), (1, 0, false));
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}

/// A write beyond the file size limit would not only fail: its signal would end the process.
#[test]
fn the_limit_on_files_is_kept() {
    const CHILD: &str = "SLAT_MM_TEST_FILE_LIMIT";
    if std::env::var_os(CHILD).is_none() {
        let test = std::thread::current().name().unwrap().to_owned();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        return;
    }
    // Built before the limit is set: an arena is a file, too.
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let limit = Rlimit { current: Some(6 * PAGE_SIZE + 9), maximum: None };
    setrlimit(Resource::Fsize, limit).unwrap();
    let file = TempFile::new("limit");
    let swap = Swap::builder().file(&file.0).build(&arena).unwrap();
    let mut machine = filled(Machine::on(AddressSpace::builder(&arena).swap(&swap)));
    assert_eq!((machine.page_out(0, PAGES), swap.stats().refused), (5, 1));
    assert_eq!(intact(&mut machine), PAGES);
    assert!(machine.all_free());
}
