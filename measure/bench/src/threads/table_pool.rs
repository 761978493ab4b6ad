//! Table memory, the same for every entrant of a bench: pages of huge pages that have been faulted in before.
//!
//! A table's physical address is its address in this process, since only this process walks it. Pages come
//! as they are, and the taker clears it, as it would have to in a kernel. A page that is given back is used
//! again; the pool grows when it must, never shrinks, and lives as long as the process.

use parking_lot::Mutex;
use slat::addr::Level;
use slat::table::memory::CHUNK_BYTES;
use std::alloc::{Layout, alloc, handle_alloc_error};
use std::ptr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// One table: 512 entries in a page.
#[repr(C, align(4096))]
pub struct Table(pub [AtomicU64; 512]);

/// In an x86-64 entry: it links a table or maps a page.
pub const PRESENT: u64 = 1;
/// In an x86-64 entry: where the address of the table or page stands.
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The growth of the pool: a few huge pages.
const GROWTH: Layout = match Layout::from_size_align(16 << 20, 2 << 20) {
    Ok(layout) => layout,
    Err(_) => panic!("powers of two"),
};

/// Addresses of what is free, with their provenance exposed.
struct Free {
    pages: Vec<usize>,
    chunks: Vec<usize>,
}

static FREE: Mutex<Free> = Mutex::new(Free { pages: Vec::new(), chunks: Vec::new() });

/// Takes a page. Its contents are whatever the last user left; its provenance is exposed.
pub fn take() -> NonNull<Table> {
    let mut free = FREE.lock();
    if free.pages.is_empty() {
        let first = free.chunk();
        free.pages.extend(parts(first, CHUNK_BYTES, size_of::<Table>()));
    }
    let page = free.pages.pop().expect("a chunk has pages");
    pointer(page)
}

/// Takes a page and clears it.
pub fn take_zeroed() -> NonNull<Table> {
    let table = take();
    // SAFETY: `take` hands out each page once, so no other thread looks at it.
    unsafe { table.write_bytes(0, 1) };
    table
}

/// Gives a page back.
///
/// # Safety
/// It came from [`take`], was not given back since, and no thread can reach it any more.
pub unsafe fn give_back(table: NonNull<Table>) {
    FREE.lock().pages.push(table.as_ptr().expose_provenance());
}

/// Takes a chunk of pages: [`CHUNK_BYTES`], aligned to as much, with any contents.
pub fn take_chunk() -> NonNull<u8> {
    let chunk = FREE.lock().chunk();
    pointer(chunk)
}

/// Grows the pool until so many bytes of chunks are free: what is timed after it meets no growth.
pub fn reserve(bytes: u64) {
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64) as usize;
    let mut free = FREE.lock();
    while free.chunks.len() < chunks {
        free.grow();
    }
}

/// Gives a chunk back.
///
/// # Safety
/// It came from [`take_chunk`], was not given back since, and no thread can reach it any more.
pub unsafe fn give_back_chunk(chunk: NonNull<u8>) {
    FREE.lock().chunks.push(chunk.as_ptr().expose_provenance());
}

/// Gives back a table of `level` and all tables below it, where the entries are in the format of x86-64.
///
/// # Safety
/// As for [`give_back`], for each of them.
pub unsafe fn give_back_tree(table: NonNull<Table>, level: Level) {
    if level > Level::K4 {
        // SAFETY: the caller hands over a table that is still whole.
        for entry in unsafe { &table.as_ref().0 } {
            if let Some(below) = child(entry.load(Ordering::Relaxed)) {
                // SAFETY: linked in the tree, so it is part of what the caller hands over.
                unsafe { give_back_tree(below, level.down()) };
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { give_back(table) };
}

/// The table that an x86-64 entry above the leaves links, if it is present.
#[inline(always)]
pub fn child(entry: u64) -> Option<NonNull<Table>> {
    if entry & PRESENT == 0 {
        return None;
    }
    NonNull::new(ptr::with_exposed_provenance_mut((entry & FRAME) as usize))
}

impl Free {
    /// An address of [`CHUNK_BYTES`], aligned to as much.
    fn chunk(&mut self) -> usize {
        if self.chunks.is_empty() {
            self.grow();
        }
        self.chunks.pop().expect("the growth has chunks")
    }

    fn grow(&mut self) {
        // SAFETY: the layout is not of size zero.
        let memory = unsafe { alloc(GROWTH) };
        if memory.is_null() {
            handle_alloc_error(GROWTH);
        }
        // Advice, so a refusal costs speed and nothing else.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is ours and holds nothing yet.
        let _ =
            unsafe { rustix::mm::madvise(memory.cast(), GROWTH.size(), rustix::mm::Advice::LinuxHugepage) };
        // SAFETY: as above; the write is what brings the pages in.
        unsafe { memory.write_bytes(0, GROWTH.size()) };
        // Below what is there: older chunks, whose pages have been used, are used again first.
        self.chunks.splice(0..0, parts(memory.expose_provenance(), GROWTH.size(), CHUNK_BYTES));
    }
}

/// Addresses of the parts of a block, the last first: they are taken from the end, so in ascending order.
fn parts(block: usize, bytes: usize, part: usize) -> impl Iterator<Item = usize> {
    (0..bytes / part).rev().map(move |nth| block + nth * part)
}

fn pointer<T>(address: usize) -> NonNull<T> {
    NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("the allocator gives no null")
}
