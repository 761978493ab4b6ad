//! Returning the memory of free frames to the operating system.
//!
//! A frame that was used keeps its memory when it is freed, so that the next use is fast. [`Arena::trim`]
//! punches free frames out of the file. It does so under the lock of the free frames, one block of 2 MiB at a
//! time. So a thread that takes a frame waits for the punch of one block at most, and finds a frame that was
//! never used. No thread runs out of memory because frames are being trimmed.

use crate::arena::Arena;
use crate::error::MmError;
use crate::nodes::Node;
use slat::{PAGE_SIZE, Pfn, Span};

impl Arena {
    /// Returns the memory of free frames to the operating system, and returns the number of bytes. May miss
    /// frames that become free meanwhile. The frames stay free, and take memory again when they are next used.
    ///
    /// Call it when a guest has gone or was swapped out and others need the memory. It takes about as long as
    /// the kernel takes to free the memory (0.1 ms for 2 MiB). Threads that allocate meanwhile wait for 2 MiB
    /// of it at most.
    ///
    /// With [poison](crate::ArenaBuilder::poison), stale writes to these frames are no longer detected.
    ///
    /// ```
    /// use slat::*;
    /// use slat_mm::*;
    /// let mut idle = Idle::take().unwrap();
    /// let arena = Arena::builder().limit(64 << 20).build()?;
    /// let space = AddressSpace::builder(&arena).build()?;
    /// let memory = space.mmap(Place::Anywhere, 1 << 20, Prot::ReadWrite, Backing::Anonymous)?;
    /// space.write(&mut idle, memory.start, &vec![7; 1 << 20])?;
    /// space.munmap(&mut idle, memory)?;
    /// assert_eq!(arena.trim()?, 1 << 20);
    /// assert_eq!(arena.trim()?, 0, "the memory was returned before");
    /// # Ok::<(), MmError>(())
    /// ```
    ///
    /// # Errors
    /// [`MmError::Os`] if the system cannot punch this file. Frames not yet returned are unchanged.
    pub fn trim(&self) -> Result<u64, MmError> {
        let mut frames = 0;
        for node in 0..self.nodes() {
            self.node(Node(node)).with_free(|free| {
                let mut left = free;
                while let Some(start) = each(left).find(|&pfn| self.is_used(pfn)) {
                    let rest = Span::new(start, left.end);
                    let end = each(rest).find(|&pfn| !self.is_used(pfn)).unwrap_or(left.end);
                    self.discard(Span::new(start, end))?;
                    frames += end.0 - start.0;
                    left.start = end;
                }
                Ok::<_, MmError>(())
            })?;
        }
        Ok(frames * PAGE_SIZE)
    }
}

fn each(frames: Span<Pfn>) -> impl Iterator<Item = Pfn> {
    (frames.start.0..frames.end.0).map(Pfn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::ArenaHandle;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use slat::table::memory::CHUNK_PAGES;
    use slat::{Level, TableMemory};
    use std::os::fd::OwnedFd;

    /// Bytes allocated to the arena's file.
    fn held(arena: &Arena) -> u64 {
        fstat(arena.memfd().unwrap()).unwrap().st_blocks as u64 * 512
    }

    fn fill(arena: &Arena, pfn: Pfn, level: Level, byte: u8) {
        // SAFETY: the test holds the page.
        unsafe { arena.frame(pfn).write_bytes(byte, level.bytes() as usize) };
    }

    fn is_all(arena: &Arena, pfn: Pfn, level: Level, byte: u8) -> bool {
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(arena.frame(pfn), level.bytes() as usize) };
        bytes.iter().all(|&it| it == byte)
    }

    #[test]
    fn the_file_shrinks_by_what_is_free_and_what_is_held_stays() {
        let arena = Arena::builder().limit(16 << 20).nodes(2).poison(0xdd).build().unwrap();
        let huge = arena.page(Level::M2).unwrap();
        let small: Vec<_> = (0..600).map(|_| arena.page(Level::K4).unwrap()).collect();
        fill(&arena, huge.pfn(), Level::M2, 1);
        for page in &small {
            fill(&arena, page.pfn(), Level::K4, 2);
        }
        assert_eq!(held(&arena), (512 + 600) * PAGE_SIZE);
        // Every third frame stays, so that free frames lie between frames in use.
        let (kept, gone): (Vec<_>, Vec<_>) = small.into_iter().enumerate().partition(|(n, _)| n % 3 == 0);
        drop(gone);
        assert_eq!(arena.trim(), Ok(400 * PAGE_SIZE));
        assert_eq!(held(&arena), (512 + 200) * PAGE_SIZE);
        assert!(is_all(&arena, huge.pfn(), Level::M2, 1));
        assert!(kept.iter().all(|(_, page)| is_all(&arena, page.pfn(), Level::K4, 2)));
        drop(huge);
        drop(kept);
        assert_eq!(arena.trim(), Ok((512 + 200) * PAGE_SIZE));
        assert_eq!((held(&arena), arena.trim()), (0, Ok(0)));
        // The frames are as if never used: zero, and whole blocks.
        let again = arena.zeroed(Level::M2).unwrap();
        assert!(is_all(&arena, again.pfn(), Level::M2, 0));
        assert_eq!(arena.stats().stale_writes, 0, "trimmed frames are taken for poisoned ones");
    }

    #[test]
    fn table_pages_go_with_the_rest() {
        let arena = Arena::builder().limit(4 << 20).build().unwrap();
        let tables = ArenaHandle::from(&arena);
        let (chunk, pfn) = tables.lend(CHUNK_PAGES).unwrap();
        assert_eq!(arena.trim(), Ok(0), "lent");
        // SAFETY: from this memory, once, unused.
        unsafe { tables.take_back(chunk, pfn, CHUNK_PAGES) };
        assert_eq!(arena.trim(), Ok(slat::table::memory::CHUNK_BYTES as u64));
    }

    #[test]
    fn an_arena_on_a_file_of_the_callers_begins_empty_and_uses_it() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8 << 20).unwrap();
        let other = file.try_clone().unwrap();
        rustix::io::pwrite(&other, &[7; 4096], 3 << 20).unwrap();
        // SAFETY: nothing else uses the file while the arena does.
        let arena = unsafe { Arena::from_fd(file) }.unwrap();
        assert_eq!(
            (arena.stats().frames, held(&arena)),
            (3 * 512, 0),
            "no frames in the first 2 MiB, and the contents punched"
        );
        let page = arena.page(Level::K4).unwrap();
        fill(&arena, page.pfn(), Level::K4, 5);
        let mut seen = [0; 4096];
        assert_eq!(rustix::io::pread(&other, &mut seen, page.pfn().address()), Ok(4096));
        assert_eq!(seen, [5; 4096], "frame n is at offset n × 4096 of that file");
        drop(page);
        assert_eq!((arena.trim(), held(&arena)), (Ok(4096), 0));
        drop(arena);
        assert_eq!(fstat(&other).unwrap().st_size, 8 << 20, "the file stays the caller's");
    }

    #[test]
    fn files_without_a_whole_block_and_non_files_are_refused() {
        let of = |file: OwnedFd| {
            // SAFETY: nothing else uses it.
            unsafe { Arena::from_fd(file) }.map(drop)
        };
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (4 << 20) - 1).unwrap();
        assert_eq!(of(file), Err(MmError::BadLimit((4 << 20) - 1)));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(of(reader.into()), Err(MmError::BadLimit(0)));
    }
}
