//! One pointer to the array that counts, and the wait for readers of the one before.
//!
//! A reader says that it is inside, by a store and a fence; the writer moves the pointer, and looks. The fence costs a
//! fault less than can be measured here. Without it the writer would have to interrupt every CPU (membarrier), and
//! changes of a small array would take five times as long: that would flatter slat, which mostly does with one look
//! as well.
//!
//! There is one reader, since the bench's VM has one vCPU. The old array is the next copy's memory, so nothing is
//! allocated once the array has its size.

use crate::scenarios::memslot::array::array_copies::Array;
use crate::scenarios::prelude::*;
use crate::world::Ordering::AcqRel;
use crate::world::{AtomicPtr, AtomicU64, Mutex, MutexGuard, fence};
use std::fmt;

/// A word alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// See the module's header.
pub struct Published {
    array: AtomicPtr<Array>,
    /// Odd while the reader is inside.
    reader: Alone,
    /// Memory for the next copy, held by the writer.
    spare: Mutex<Option<Box<Array>>>,
}

/// The only writer.
pub struct Writer<'p> {
    published: &'p Published,
    spare: MutexGuard<'p, Option<Box<Array>>>,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

impl Default for Published {
    fn default() -> Self {
        Self {
            array: AtomicPtr::new(Box::into_raw(Box::default())),
            reader: Alone::default(),
            spare: Mutex::default(),
        }
    }
}

impl Published {
    /// Calls `look` with the array that counts; it stays until `look` returns.
    ///
    /// # Safety
    /// One thread at a time, and not from inside `look`.
    #[inline(always)]
    pub unsafe fn read<R>(&self, look: impl FnOnce(&Array) -> R) -> R {
        let before = self.reader.0.load(Relaxed);
        self.reader.0.store(before + 1, Relaxed);
        // ORDER(array): the store before every load of the array; pairs with the fence in `wait`: either the writer
        // sees the reader inside, or the reader sees the new array.
        fence(SeqCst);
        // SAFETY: the pointer is to a live array, and `publish` waits before its memory is used again.
        let found = look(unsafe { &*self.array.load(Acquire) });
        // ORDER(array-end): every load before this store; pairs with the Acquire in `wait`.
        self.reader.0.store(before + 2, Release);
        found
    }

    /// The writer. Waits while there is one.
    pub fn writer(&self) -> Writer<'_> {
        Writer { published: self, spare: self.spare.lock() }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; with `&mut self` there is no reader.
        drop(unsafe { Box::from_raw(self.array.load(Relaxed)) });
    }
}

impl Writer<'_> {
    /// The array that counts.
    #[inline(always)]
    pub fn current(&self) -> &Array {
        // SAFETY: only the writer replaces it, and that takes `&mut self`.
        unsafe { &*self.published.array.load(Relaxed) }
    }

    /// Makes the next array out of the current one, publishes it, and waits until no thread reads the old one.
    pub fn publish(&mut self, make: impl FnOnce(&mut Array, &Array)) {
        let old = self.replace(make);
        self.wait();
        // SAFETY: from `Box::into_raw`, and no thread reads it any more.
        *self.spare = Some(unsafe { Box::from_raw(old) });
    }

    /// Publishes the next array, and returns the old one, which may be read for a while.
    fn replace(&mut self, make: impl FnOnce(&mut Array, &Array)) -> *mut Array {
        let mut next = self.spare.take().unwrap_or_default();
        make(&mut next, self.current());
        // ORDER(array): AcqRel: the copy before the pointer; pairs with the load in `read`.
        self.published.array.swap(Box::into_raw(next), AcqRel)
    }

    /// Waits until the reader has left, if it was inside.
    fn wait(&self) {
        let Alone(reader) = &self.published.reader;
        // ORDER(array): the pointer before the look at the reader; pairs with the fence in `read`.
        fence(SeqCst);
        // ORDER(array-end): Acquire: the reader's last look is over before the memory is written again.
        let then = reader.load(Acquire);
        while then % 2 == 1 && reader.load(Acquire) == then {
            pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader stays inside while its array is replaced; then it looks for a while whether the writer, which waits for
    /// it or (the negative control) does not, is through. Returns whether it was.
    fn writer_overtakes_the_reader(waits: bool) -> bool {
        let published = Published::default();
        let (inside, through, left) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let wait_for = |flag: &dyn Fn() -> bool| {
            while !flag() {
                pause();
            }
        };
        let write = || {
            let mut writer = published.writer();
            wait_for(&|| inside.load(Acquire));
            let old = writer.replace(|_, _| ());
            if waits {
                writer.wait();
            }
            through.store(true, Release);
            wait_for(&|| left.load(Acquire));
            // SAFETY: the reader has left.
            *writer.spare = Some(unsafe { Box::from_raw(old) });
        };
        let mut overtaken = false;
        let read = || {
            let look = |array: &Array| {
                inside.store(true, Release);
                wait_for(&|| !core::ptr::eq(published.array.load(Acquire), array));
                if !waits {
                    wait_for(&|| through.load(Acquire));
                }
                let is_through = |_| {
                    pause();
                    through.load(Acquire)
                };
                (0..100).any(is_through)
            };
            // SAFETY: this is the only reader.
            overtaken = unsafe { published.read(look) };
            left.store(true, Release);
        };
        run(&Costs::SERVER, vec![Job::new("writer", write), Job::new("reader", read)]);
        overtaken
    }

    #[test]
    fn an_array_outlasts_its_reader() {
        assert!((0..3).all(|_| !writer_overtakes_the_reader(true)));
    }

    #[test]
    fn negative_control_without_the_wait_it_does_not() {
        assert!(writer_overtakes_the_reader(false));
    }
}
