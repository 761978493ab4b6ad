//! Loads and stores of guest memory by guest-physical address, for a VMM on a host of its own.
//!
//! ```text
//! part by part, each in one page
//!   listeners of the frame, if its stores are tracked      before a store
//!   one section: memslot ─▶ Hva ─▶ `Host::read`, `Host::compare_exchange`; a store marks the page
//!     the host would sleep?                                leave the section, resolve, continue with the same bytes
//!   the listeners again                                    after a store
//! ```
//! A transaction that removes the memslot waits for the section. So the bytes go to the memory that the memslot has, and
//! the mark to its log.

use crate::callbacks::Finally;
use crate::memslots::Snapshot;
use crate::slots::watched::TrackedStore;
use crate::writes::tell_after;
use crate::{Access, Format, Gpa, GuestSpace, Host, HostError, Hva, Idle, PAGE_SIZE, Slot, Token, Word};
use core::cell::Cell;

/// How often the host is asked for one part before the access fails.
const ATTEMPTS: u32 = 16;

/// Words that are read in one section.
const WORDS: usize = 64;

/// An access to guest memory that ended early. The bytes before [`gpa`](Self::gpa) were read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestMemoryError {
    /// The first address that was not accessed.
    pub gpa: Gpa,
    /// The reason.
    pub why: NoGuestMemory,
}

/// The reason of a [`GuestMemoryError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoGuestMemory {
    /// No memslot has the address: it is a device's.
    NoMemslot,
    /// The memslot is read-only: the store goes to a device.
    ReadOnly,
    /// The frame shows [private memory](crate::Slot::is_private), which the VMM cannot access.
    Private,
    /// The page is not there yet ([`HostError::Pending`]); the host calls it by this token.
    Pending(Token),
    /// The host has no page for it.
    Host(HostError),
    /// The host resolves the page, but [`Host::read`] or [`Host::compare_exchange`] never accesses it. The default
    /// functions access nothing.
    NotOffered,
}

impl core::fmt::Display for GuestMemoryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "guest memory at {}: {}", self.gpa, self.why)
    }
}

impl core::error::Error for GuestMemoryError {}

errors! { NoGuestMemory:
    Self::NoMemslot => "no memslot has it: emulate a device";
    Self::ReadOnly => "the memslot is read-only: emulate a device";
    Self::Private => "the frame's memory is private to the guest";
    Self::Pending(token) => "the host has the page later, as token {:#x}: access it then", token.0;
    Self::Host(error) => "{error}";
    Self::NotOffered => "the host resolves the page but does not access it: implement `Host::read` and `compare_exchange`";
}

/// Bytes of one page, and the words around them.
#[derive(Clone, Copy)]
struct Part {
    /// The first byte's address.
    gpa: Gpa,
    /// Number of bytes.
    len: usize,
}

impl Part {
    /// The first part of `len` bytes at `gpa`: at most [`WORDS`] words of one page.
    fn first(gpa: Gpa, len: usize) -> Self {
        let most = (WORDS as u64 * 8 - gpa.0 % 8).min(PAGE_SIZE - gpa.offset());
        Self { gpa, len: len.min(most as usize) }
    }

    /// The offset of the first byte in its word.
    fn lead(self) -> usize {
        (self.gpa.0 % 8) as usize
    }

    /// Number of words that contain the bytes.
    fn words(self) -> usize {
        (self.lead() + self.len).div_ceil(8)
    }

    /// The host address of the first word.
    fn hva(self, slot: &Slot) -> Hva {
        slot.hva_of(self.gpa.gfn()) + (self.gpa.offset() & !7)
    }
}

impl<F: Format, H: Host> GuestSpace<'_, F, H> {
    /// Reads guest memory at `gpa` into `bytes`, as a device does. The host must implement [`Host::read`]; each aligned
    /// eight bytes are one load of it. Reads what the guest has stored, whether the tables map the page or not, and maps
    /// nothing.
    ///
    /// Sleeps in the host if a page is absent. For many accesses to one page, [`hold`](Self::hold) it.
    ///
    /// ```
    /// use slat::{table::{Word, formats::Ept4}, *};
    /// use std::sync::atomic::{AtomicU64, Ordering::{AcqRel, Acquire}};
    ///
    /// /// The guest's memory: four pages at host address 0x10_0000.
    /// struct Ram(Vec<AtomicU64>);
    ///
    /// impl Ram {
    ///     fn word(&self, hva: Hva) -> &AtomicU64 {
    ///         &self.0[(hva.0 as usize - 0x10_0000) / 8]
    ///     }
    /// }
    ///
    /// impl Host for Ram {
    ///     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    ///         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    ///     }
    ///     fn read(&self, hva: Hva) -> Option<Word> {
    ///         Some(Word(u64::from_le(self.word(hva).load(Acquire))))
    ///     }
    ///     fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
    ///         let done = self.word(hva).compare_exchange(old.0.to_le(), new.0.to_le(), AcqRel, Acquire);
    ///         let word = |word| Word(u64::from_le(word));
    ///         Some(done.map(word).map_err(word))
    ///     }
    /// }
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let ram = Ram((0..4 * 512).map(|_| AtomicU64::new(0)).collect());
    /// let vm = Vm::<Ept4, _>::builder(ram).build()?;
    /// let slot = Slot::new(SlotId(0), Gfn(0x10), 4, Hva(0x10_0000)).log_dirty();
    /// vm.memory().commit(&mut idle, |tx| tx.create(slot))?;
    ///
    /// // Across the end of a page, at no multiple of eight.
    /// vm.memory().write_bytes(&mut idle, Gpa(0x1_0ffd), b"hello")?;
    /// let mut bytes = [0; 7];
    /// vm.memory().read_bytes(&mut idle, Gpa(0x1_0ffc), &mut bytes)?;
    /// assert_eq!(&bytes, b"\0hello\0");
    /// // Both pages are in the dirty log.
    /// assert_eq!([0x10, 0x11, 0x12].map(|gfn| vm.memory().is_dirty(Gfn(gfn))), [true, true, false]);
    ///
    /// // The memslot ends at 0x1_4000.
    /// let beyond = vm.memory().read_bytes(&mut idle, Gpa(0x1_3ffe), &mut bytes);
    /// assert_eq!(beyond, Err(GuestMemoryError { gpa: Gpa(0x1_4000), why: NoGuestMemory::NoMemslot }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_bytes(&self, idle: &mut Idle, gpa: Gpa, bytes: &mut [u8]) -> Result<(), GuestMemoryError> {
        let (mut gpa, mut left) = (gpa, bytes);
        while !left.is_empty() {
            let part = Part::first(gpa, left.len());
            let (now, rest) = left.split_at_mut(part.len);
            let mut words = [Word(0); WORDS];
            let words = &mut words[..part.words()];
            self.access(idle, part, Access::Read, |_, hva| self.vm.host().read_all(hva, words))
                .map_err(|why| GuestMemoryError { gpa, why })?;
            let read = words.iter().flat_map(|word| word.0.to_le_bytes()).skip(part.lead());
            now.iter_mut().zip(read).for_each(|(byte, read)| *byte = read);
            // Wraps only after the last byte.
            (gpa, left) = (Gpa(gpa.0.wrapping_add(part.len as u64)), rest);
        }
        Ok(())
    }

    /// Writes `bytes` to guest memory at `gpa`, as a device does, and marks the pages dirty where their memslots log.
    /// The host must implement [`Host::read`] and [`Host::compare_exchange`]. Each aligned eight bytes are stored by one
    /// exchange, which keeps the neighbours of bytes at the ends. [`read_bytes`](Self::read_bytes) has an example.
    ///
    /// If [stores to a frame are tracked](Self::track_writes), its listeners are called before and after each part, as
    /// by [`emulate_store`](Self::emulate_store). Sleeps in them, and in the host if a page is absent or not writable.
    ///
    /// If the host panics, the words before are stored and marked; listeners are not told of them.
    pub fn write_bytes(&self, idle: &mut Idle, gpa: Gpa, bytes: &[u8]) -> Result<(), GuestMemoryError> {
        let (mut gpa, mut left) = (gpa, bytes);
        while !left.is_empty() {
            let part = Part::first(gpa, left.len());
            let (now, rest) = left.split_at(part.len);
            self.write_part(idle, part, now)?;
            (gpa, left) = (Gpa(gpa.0.wrapping_add(part.len as u64)), rest);
        }
        Ok(())
    }

    fn write_part(&self, idle: &mut Idle, part: Part, bytes: &[u8]) -> Result<(), GuestMemoryError> {
        let told = |bytes| TrackedStore { space: self.space.id, gpa: part.gpa, bytes };
        let listeners = self.space.watched.listeners(part.gpa.gfn());
        if !listeners.is_empty() {
            let refused = |why| GuestMemoryError { gpa: part.gpa, why };
            allowed(&self.snapshot(idle), part, Access::Write).map_err(refused)?;
        }
        for listener in &listeners {
            listener.before(idle, &told(bytes));
        }
        // Words that are stored: another attempt continues after them.
        let stored = Cell::new(0);
        let done = self.access(idle, part, Access::Write, |mark, hva| {
            let before = stored.get();
            // Also if the host panics: the words before are stored.
            let _marked = Finally::with((), |()| {
                if stored.get() > before {
                    mark();
                }
            });
            while stored.get() < part.words() {
                if !self.store_word(hva, part, bytes, stored.get()) {
                    return false;
                }
                stored.set(stored.get() + 1);
            }
            true
        });
        let bytes = &bytes[..part.len.min((stored.get() * 8).saturating_sub(part.lead()))];
        if !bytes.is_empty() {
            tell_after(&listeners, idle, &told(bytes));
        }
        done.map_err(|why| GuestMemoryError { gpa: Gpa(part.gpa.0 + bytes.len() as u64), why })
    }

    /// Stores the bytes of the `nth` word. Returns false if the host would sleep.
    fn store_word(&self, hva: Hva, part: Part, bytes: &[u8], nth: usize) -> bool {
        let (host, hva) = (self.vm.host(), hva + nth as u64 * 8);
        let Some(mut found) = host.read(hva) else { return false };
        loop {
            let mut word = found.0.to_le_bytes();
            for (at, byte) in word.iter_mut().enumerate() {
                if let Some(new) = (nth * 8 + at).checked_sub(part.lead()).and_then(|at| bytes.get(at)) {
                    *byte = *new;
                }
            }
            match host.compare_exchange(hva, found, Word(u64::from_le_bytes(word))) {
                None => return false,
                Some(Ok(_)) => return true,
                Some(Err(now)) => found = now,
            }
        }
    }

    /// Calls `access` in a section with the host address of the part's first word, until it returns true; asks the host
    /// for the page in between. `access` may call the function that marks the page.
    fn access(
        &self,
        idle: &mut Idle,
        part: Part,
        kind: Access,
        mut access: impl FnMut(&dyn Fn(), Hva) -> bool,
    ) -> Result<(), NoGuestMemory> {
        let gfn = part.gpa.gfn();
        for _ in 0..ATTEMPTS {
            let snapshot = self.snapshot(idle);
            let slot = allowed(&snapshot, part, kind)?;
            if access(&|| snapshot.mark_store(gfn), part.hva(&slot)) {
                return Ok(());
            }
            drop(snapshot);
            let hva = slot.hva_of(gfn);
            self.vm.host().resolve(idle, hva, kind).map_err(|error| match error {
                HostError::Pending => NoGuestMemory::Pending(self.vm.host().token(hva)),
                error => NoGuestMemory::Host(error),
            })?;
        }
        Err(NoGuestMemory::NotOffered)
    }
}

/// Returns the memslot of a part, if it allows the access.
fn allowed(snapshot: &Snapshot<'_>, part: Part, kind: Access) -> Result<Slot, NoGuestMemory> {
    let slot = snapshot.find(part.gpa.gfn()).ok_or(NoGuestMemory::NoMemslot)?;
    if slot.is_private() {
        return Err(NoGuestMemory::Private);
    }
    if kind == Access::Write && slot.readonly {
        return Err(NoGuestMemory::ReadOnly);
    }
    Ok(slot)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
