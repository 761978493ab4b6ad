//! The pages of `guest_memfd`s in this process. Only guests use them, so the host may move them: with `SLAT_MOVES`, a
//! thread moves pages to and fro between two places, and poisons the place that a page has left.

use slat::{Hva, PAGE_SIZE, PrivateMemory};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, RwLock};

/// A `guest_memfd`'s memory; empty once that has gone.
#[derive(Default)]
struct Area {
    /// The memory of its descriptor, and as much beside it.
    places: [u64; 2],
    /// The place of each page.
    at: Vec<u8>,
}

static AREAS: RwLock<Vec<Area>> = RwLock::new(Vec::new());
static REPORTS: Once = Once::new();
/// Moves of all memories together.
static MOVES: AtomicU64 = AtomicU64::new(0);

const PAGE: usize = PAGE_SIZE as usize;
const POISON: u8 = 0xdb;

fn map(bytes: usize, flags: c_int, fd: c_int) -> Result<u64, c_int> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(libc::ENOMEM) } else { Ok(at as u64) }
}

/// Maps `fd`, the memory of a `guest_memfd`, for guests alone.
pub fn add(fd: c_int, bytes: u64) -> Result<PrivateMemory, c_int> {
    let mut areas = AREAS.write().unwrap();
    let number = u16::try_from(areas.len()).ok().filter(|&number| number < PrivateMemory::COUNT);
    let number = number.ok_or(libc::EMFILE)?;
    let beside = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let places = [map(bytes as usize, libc::MAP_SHARED, fd)?, map(bytes as usize, beside, -1)?];
    areas.push(Area { places, at: vec![0; bytes as usize / PAGE] });
    Ok(PrivateMemory(number))
}

/// From now on the memory has no pages. Returns a function that unmaps it, for when no guest uses it.
pub fn forget(memory: PrivateMemory) -> impl FnOnce() {
    let area = std::mem::take(&mut AREAS.write().unwrap()[usize::from(memory.0)]);
    move || {
        for place in area.places {
            // SAFETY: mapped by `add`; required of the caller: no guest uses it.
            unsafe { libc::syscall(libc::SYS_munmap, place, area.at.len() * PAGE) };
        }
    }
}

/// The address in this process of an address in private memory, or of one in the process.
pub fn address(hva: Hva) -> Option<Hva> {
    let Some((PrivateMemory(number), offset)) = hva.private_memory() else { return Some(hva) };
    let areas = AREAS.read().unwrap();
    let area = &areas[usize::from(number)];
    let &place = area.at.get((offset / PAGE_SIZE) as usize)?;
    Some(Hva(area.places[usize::from(place)] + offset))
}

/// Frees pages, which are zero when they are used again; `punch` frees those of the descriptor. The caller has
/// invalidated them. Invalidations may overlap, so no move may come between the two.
pub fn free<R>(memory: PrivateMemory, (start, bytes): (u64, u64), punch: impl FnOnce() -> R) -> R {
    let mut areas = AREAS.write().unwrap();
    let area = &mut areas[usize::from(memory.0)];
    area.at[(start / PAGE_SIZE) as usize..((start + bytes) / PAGE_SIZE) as usize].fill(0);
    // SAFETY: part of this memory.
    unsafe { libc::syscall(libc::SYS_madvise, area.places[1] + start, bytes, libc::MADV_DONTNEED) };
    punch()
}

/// Moves one page. The caller has invalidated it.
pub fn move_page(memory: PrivateMemory, page: usize) {
    let mut areas = AREAS.write().unwrap();
    let area = &mut areas[usize::from(memory.0)];
    let Some(&place) = area.at.get(page) else { return };
    let [old, new] = [place, 1 - place].map(|place| area.places[usize::from(place)] as usize + page * PAGE);
    // SAFETY: both are this memory's, and no guest uses either now.
    unsafe {
        std::ptr::copy_nonoverlapping(old as *const u8, new as *mut u8, PAGE);
        std::ptr::write_bytes(old as *mut u8, POISON, PAGE);
    }
    area.at[page] = 1 - place;
    MOVES.fetch_add(1, Ordering::Relaxed);
}

/// Has the number of moves printed when the process ends: a line for `run`.
pub fn count() {
    // SAFETY: `report` may run at any time.
    REPORTS.call_once(|| _ = unsafe { libc::atexit(report) });
}

extern "C" fn report() {
    eprintln!("moved: {} pages", MOVES.load(Ordering::Relaxed));
}
