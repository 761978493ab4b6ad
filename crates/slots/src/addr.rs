//! Addresses, one type each, so that a guest frame cannot be used as a host frame.
//!
//! ```text
//! Gpa ── >> 12 ──▶ Gfn ── memslot ──▶ Hva ── primary MMU ──▶ Pfn
//! ```
//! A number loses its type only when a page-table format packs it into an entry, and regains it when the format
//! unpacks it. All types here are `Copy` and one word.

use core::fmt;
use core::ops::{Add, Range};

/// Base-two logarithm of the smallest page, in bytes.
pub const PAGE_SHIFT: u32 = 12;
/// The smallest page, in bytes.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Base-two logarithm of the entries in one table page.
pub const INDEX_BITS: u32 = 9;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $page:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl Add<u64> for $name {
            type Output = Self;
            #[inline]
            fn add(self, rhs: u64) -> Self {
                Self(self.0 + rhs)
            }
        }

        impl Position for $name {
            const PAGE: u64 = $page;
            #[inline]
            fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
            #[inline]
            fn raw(self) -> u64 {
                self.0
            }
        }
    };
}

/// A position on one of the number lines of this module; a [`Span`] has two.
pub trait Position: Copy + Ord + fmt::Debug {
    /// Size of a 4 KiB page on this line: 1 for frames, 4096 for bytes.
    const PAGE: u64;
    /// The position with this number.
    fn from_raw(raw: u64) -> Self;
    /// Returns its number: frames for [`Gfn`] and [`Pfn`], bytes for [`Gpa`] and [`Hva`].
    fn raw(self) -> u64;
}

address! {
    /// A guest-physical address, in bytes.
    Gpa, PAGE_SIZE
}
address! {
    /// A guest frame number: a guest-physical address in pages of 4 KiB.
    Gfn, 1
}
address! {
    /// A guest-virtual address, which the guest's own page table translates, in bytes.
    Gva, PAGE_SIZE
}
address! {
    /// An address in the host's address space (the primary MMU's input), in bytes.
    Hva, PAGE_SIZE
}
address! {
    /// A physical frame number, in pages of 4 KiB. "Physical" is what the tables' walker uses: machine frames
    /// on bare metal, frames of an arena in user space.
    Pfn, 1
}

impl Gpa {
    /// The frame that holds this address.
    #[inline]
    pub const fn gfn(self) -> Gfn {
        Gfn(self.0 >> PAGE_SHIFT)
    }

    /// The offset inside its 4 KiB page, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & (PAGE_SIZE - 1)
    }
}

impl Gpa {
    /// Returns the address without the bit at this position, and whether it was set. For guests whose addresses
    /// have a bit that marks shared or private memory.
    #[inline]
    pub const fn split_bit(self, bit: u32) -> (Self, bool) {
        (Self(self.0 & !(1 << bit)), self.0 >> bit & 1 != 0)
    }
}

impl Gfn {
    /// The first address of the frame.
    #[inline]
    pub const fn gpa(self) -> Gpa {
        Gpa(self.0 << PAGE_SHIFT)
    }

    /// The first frame of the page of size `level` that holds this frame.
    #[inline]
    pub const fn base(self, level: Level) -> Self {
        Self(self.0 & !(level.pages() - 1))
    }
}

/// Memory without a host address, like KVM's `guest_memfd`. The embedder chooses its number, below
/// [`PrivateMemory::COUNT`].
///
/// Number and offset together are encoded as an [`Hva`] in a part of the address space that no processor uses.
/// So everything that takes a host address accepts it: a memslot, an invalidation, a host call. Such memory is
/// private: see [`Slot::is_private`](crate::Slot::is_private).
///
/// ```
/// use slat_slots::{PrivateMemory, Hva};
/// let page = PrivateMemory(3).at(0x5000);
/// assert_eq!(page.private_memory(), Some((PrivateMemory(3), 0x5000)));
/// assert_eq!(Hva(0x7f00_0000_5000).private_memory(), None);
/// assert_eq!(Hva(0xffff_8000_0000_5000).private_memory(), None, "a kernel's address");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PrivateMemory(pub u16);

impl PrivateMemory {
    /// Number of private memories.
    pub const COUNT: u16 = 1 << 14;
    /// Bytes of each; offsets are below this.
    pub const BYTES: u64 = 1 << 48;
    /// The top two bits of an address, 10. No address of a user or kernel half has them.
    const MARK: u64 = 1 << 63;

    /// Encodes the address `offset` bytes inside.
    ///
    /// # Panics
    /// If the number or the offset is too large.
    pub const fn at(self, offset: u64) -> Hva {
        assert!(
            self.0 < Self::COUNT && offset < Self::BYTES,
            "private memory has a number and an offset that fit"
        );
        Hva(Self::MARK | (self.0 as u64) << 48 | offset)
    }
}

impl PrivateMemory {
    /// Returns all its addresses.
    pub(crate) fn names(self) -> Span<Hva> {
        Span::sized(self.at(0), Self::BYTES)
    }
}

impl Hva {
    /// Returns the private memory and the offset in it, if this address encodes them.
    #[inline]
    pub const fn private_memory(self) -> Option<(PrivateMemory, u64)> {
        let named = self.0 >> 62 == PrivateMemory::MARK >> 62;
        let number = (self.0 >> 48) as u16 & (PrivateMemory::COUNT - 1);
        if named { Some((PrivateMemory(number), self.0 & (PrivateMemory::BYTES - 1))) } else { None }
    }

    /// The offset inside its 4 KiB page, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & (PAGE_SIZE - 1)
    }
}

impl Pfn {
    /// The first byte of the frame, as a physical address.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}

/// A level of a table, counted from the leaves: an entry of level 1 maps 4 KiB, of level 2 2 MiB,
/// of level 3 1 GiB. Higher levels hold tables only.
///
/// There are six levels and no other values: a host cannot make a page of level 0.
///
/// ```
/// # use slat_slots::Level;
/// assert_eq!([1, 2, 3].map(Level::new), [Some(Level::K4), Some(Level::M2), Some(Level::G1)]);
/// assert_eq!([0, 7].map(Level::new), [None; 2]);
/// ```
/// ```compile_fail,E0603
/// let _ = slat_slots::Level(0); // its field is private
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// 4 KiB.
    pub const K4: Self = Self(1);
    /// 2 MiB.
    pub const M2: Self = Self(2);
    /// 1 GiB.
    pub const G1: Self = Self(3);
    /// One above the root of the tallest table.
    const HIGHEST: Self = Self(6);

    /// The level with this number, from 1 to 6; `None` for any other number.
    #[inline]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= Self::K4.0 && number <= Self::HIGHEST.0 { Some(Self(number)) } else { None }
    }

    /// Its number: 1 for the level whose entries map 4 KiB.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Frames of 4 KiB that one entry of this level covers.
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.shift()
    }

    /// Bytes that one entry of this level covers.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.pages() << PAGE_SHIFT
    }

    /// Base-two logarithm of [`pages`](Self::pages).
    #[inline]
    pub const fn shift(self) -> u32 {
        (self.0 as u32 - 1) * INDEX_BITS
    }

    /// The level below.
    ///
    /// # Panics
    /// At level 1.
    #[inline]
    pub const fn down(self) -> Self {
        assert!(self.0 > Self::K4.0, "there is no level below 1");
        Self(self.0 - 1)
    }

    /// The level below, unchecked: for table walks that have found a link at this level.
    ///
    /// # Safety
    /// The level is above 1.
    #[inline(always)]
    pub const unsafe fn down_unchecked(self) -> Self {
        debug_assert!(self.0 > Self::K4.0);
        Self(self.0 - 1)
    }

    /// The level above.
    ///
    /// # Panics
    /// At level 6.
    #[inline]
    pub const fn up(self) -> Self {
        assert!(self.0 < Self::HIGHEST.0, "there is no level above 6");
        Self(self.0 + 1)
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::K4 => f.write_str("4K"),
            Self::M2 => f.write_str("2M"),
            Self::G1 => f.write_str("1G"),
            Self(n) => write!(f, "level {n}"),
        }
    }
}

/// A half-open range: `start` is inside, `end` is not. An inverted range is empty, and so is the default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span<T> {
    /// First position inside.
    pub start: T,
    /// First position past it.
    pub end: T,
}

impl<T: Position> Span<T> {
    /// From `start` up to, not including, `end`.
    #[inline]
    pub const fn new(start: T, end: T) -> Self {
        Self { start, end }
    }

    /// `len` positions from `start`; ends at the end of the number line and does not wrap.
    #[inline]
    pub fn sized(start: T, len: u64) -> Self {
        Self { start, end: T::from_raw(start.raw().saturating_add(len)) }
    }

    /// Positions inside: frames or bytes, by `T`.
    #[inline]
    pub fn len(&self) -> u64 {
        self.end.raw().saturating_sub(self.start.raw())
    }

    /// Whether nothing lies inside.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Whether `at` lies inside.
    #[inline]
    pub fn contains(&self, at: T) -> bool {
        self.start <= at && at < self.end
    }

    /// Whether all of `other` lies inside.
    #[inline]
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether any position lies in both.
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }

    /// The positions in both; empty if there are none.
    #[inline]
    pub fn clamp(&self, other: &Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The smallest span that covers both.
    #[inline]
    pub fn hull(&self, other: &Self) -> Self {
        if self.is_empty() {
            *other
        } else if other.is_empty() {
            *self
        } else {
            Self { start: self.start.min(other.start), end: self.end.max(other.end) }
        }
    }

    /// The span extended to multiples of `unit` (a power of two, in the positions of `T`).
    #[inline]
    pub fn widen(&self, unit: u64) -> Self {
        debug_assert!(unit.is_power_of_two());
        let end = self.end.raw().saturating_add(unit - 1);
        Self { start: T::from_raw(self.start.raw() & !(unit - 1)), end: T::from_raw(end & !(unit - 1)) }
    }
}

impl<T: Position> From<Range<T>> for Span<T> {
    fn from(range: Range<T>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl<T: fmt::Debug> fmt::Debug for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}..{:?}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_meet_only_where_positions_do() {
        let a = Span::new(Gfn(10), Gfn(20));
        assert!(a.overlaps(&Span::new(Gfn(19), Gfn(30))));
        assert!(!a.overlaps(&Span::new(Gfn(20), Gfn(30))), "adjacent is not overlapping");
        assert!(!a.overlaps(&Span::new(Gfn(15), Gfn(15))), "an empty span meets nothing");
        assert_eq!(a.clamp(&Span::new(Gfn(0), Gfn(12))), Span::new(Gfn(10), Gfn(12)));
        assert_eq!(a.hull(&Span::new(Gfn(0), Gfn(0))), a);
        assert_eq!(a.widen(16), Span::new(Gfn(0), Gfn(32)));
        assert_eq!(Span::sized(Gfn(u64::MAX), 5).len(), 0, "a span ends at the end of the number line");
    }

    #[test]
    fn levels_are_powers_of_512() {
        assert_eq!([Level::K4.bytes(), Level::M2.bytes(), Level::G1.bytes()], [4 << 10, 2 << 20, 1 << 30]);
        assert_eq!(Gfn(0x12345).base(Level::M2), Gfn(0x12200));
    }
}
