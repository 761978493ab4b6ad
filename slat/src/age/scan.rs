//! Scans 64 entries of a leaf table, and returns one bit for each young entry.
//!
//! The speed of reading tables limits a pass over idle memory, so this loop is its main cost. An entry is young if A
//! and any bit of `PRESENT` are set; absent words use the place of A for other data. Formats without A test `PRESENT`
//! only.
//!
//! The AVX2 loop compares four entries at once. They change meanwhile, and in Rust's memory model a plain load that
//! races with an atomic store is undefined. The loads are therefore assembly, which the model does not see as loads;
//! the loop of relaxed loads defines what they must find. The AVX2 loop needs `std`, which can query the processor and
//! owns the vector registers. In a kernel that uses this crate without `std`, those registers hold values of its guest.

use crate::table::{Entry, Format, Word};

/// The bit that a pass looks for. The docs of this module call an entry with the bit young, whichever bit it is.
pub(crate) trait Bit: Copy {
    /// Returns the bit in format `F`.
    fn of<F: Format>() -> u64;
    /// Whether leaves larger than 4 KiB are reported, too.
    const LARGE: bool;
    /// Whether the pass must clear a bit that it found, as long as the entry remains a leaf.
    const EXACT: bool;
}

/// A: the page was accessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessed;

impl Bit for Accessed {
    #[inline(always)]
    fn of<F: Format>() -> u64 {
        F::ACCESSED
    }

    const LARGE: bool = true;
    const EXACT: bool = false;
}

/// D: the page was written ([`crate::dirty`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written;

impl Bit for Written {
    #[inline(always)]
    fn of<F: Format>() -> u64 {
        F::DIRTY
    }

    // In a slot that logs, all pages of a large leaf are marked, or the leaf is write-protected.
    const LARGE: bool = false;
    const EXACT: bool = true;
}

/// Number of entries in a group.
pub(super) const GROUP: usize = 64;

/// Whether the entry is a leaf or a link that was accessed.
#[inline(always)]
pub(super) fn is_young<F: Format, B: Bit>(word: Word) -> bool {
    let seen = word.0 & (B::of::<F>() | F::PRESENT);
    // PRESENT is below A and D, so both are set exactly if this is greater than the bit. If there are two bits, either
    // counts.
    if is_one_bit::<F, B>() { seen > B::of::<F>() } else { seen > F::PRESENT && seen & F::PRESENT != 0 }
}

/// Whether format `F` has one bit for it, or none, in which case a present entry is young.
#[inline(always)]
fn is_one_bit<F: Format, B: Bit>() -> bool {
    B::of::<F>().count_ones() <= 1
}

/// The scan method, chosen once for a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scan {
    /// Relaxed loads, one by one.
    Portable,
    /// Vectors of four entries.
    #[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
    Avx2,
}

impl Scan {
    /// Returns the fastest scan of this processor.
    #[inline]
    pub fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Portable
    }

    /// Returns the young entries of a group.
    #[inline(always)]
    pub(super) fn group<F: Format, B: Bit>(self, entries: &[Entry; GROUP]) -> u64 {
        match self {
            Self::Portable => portable::<F, B>(entries),
            #[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
            // SAFETY: this variant exists only if the processor has AVX2.
            Self::Avx2 => unsafe { avx2::<F, B>(entries) },
        }
    }
}

/// Scans one cache line at a time. A line without any A is skipped.
#[inline(always)]
pub(super) fn portable<F: Format, B: Bit>(entries: &[Entry; GROUP]) -> u64 {
    const LINE: usize = 8;
    let mut young = 0;
    for (line, entries) in entries.chunks_exact(LINE).enumerate() {
        let any = entries.iter().fold(0, |any, entry| any | entry.peek().0);
        let worth = any & if F::HARDWARE_AD { B::of::<F>() } else { F::PRESENT };
        if worth != 0 {
            for (index, entry) in entries.iter().enumerate() {
                young |= u64::from(is_young::<F, B>(entry.peek())) << (line * LINE + index);
            }
        }
    }
    young
}

/// Scans without branches: compares four entries at once, and packs the results to one bit each.
///
/// # Safety
/// The processor has AVX2.
#[cfg(all(target_arch = "x86_64", feature = "std", not(any(miri, loom, virtual_time))))]
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn avx2<F: Format, B: Bit>(entries: &[Entry; GROUP]) -> u64 {
    use core::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_cmpgt_epi64, _mm256_movemask_epi8, _mm256_packs_epi16,
        _mm256_packs_epi32, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_set1_epi64x,
        _mm256_setr_epi32, _mm256_setzero_si256,
    };
    const LANES: usize = 4;
    let bit = _mm256_set1_epi64x(B::of::<F>().cast_signed());
    let present = _mm256_set1_epi64x(F::PRESENT.cast_signed());
    let both = _mm256_set1_epi64x((B::of::<F>() | F::PRESENT).cast_signed());
    let four = |first: usize| -> __m256i {
        let seen: __m256i;
        // SAFETY: reads 32 bytes of the group. Each entry is one aligned 8-byte part of the load, which x86 loads
        // without tearing. The load sees a concurrent store or not.
        unsafe {
            core::arch::asm!("vpand {seen}, {both}, [{at}]", seen = out(ymm_reg) seen, both = in(ymm_reg) both,
                at = in(reg) entries.as_ptr().add(first), options(nostack, preserves_flags, readonly));
        }
        if is_one_bit::<F, B>() {
            return _mm256_cmpgt_epi64(seen, bit);
        }
        let some = _mm256_cmpgt_epi64(seen, present);
        _mm256_and_si256(some, _mm256_cmpgt_epi64(_mm256_and_si256(seen, present), _mm256_setzero_si256()))
    };
    // Packing works on halves of a vector and reorders pairs; the permutations restore the order.
    let sixteen = |first: usize| {
        let low = _mm256_packs_epi32(four(first), four(first + LANES));
        let high = _mm256_packs_epi32(four(first + 2 * LANES), four(first + 3 * LANES));
        let pairs = _mm256_packs_epi32(low, high);
        _mm256_permutevar8x32_epi32(pairs, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    };
    let half = |first: usize| {
        let bytes = _mm256_packs_epi16(sixteen(first), sixteen(first + 4 * LANES));
        _mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(bytes)).cast_unsigned()
    };
    u64::from(half(0)) | u64::from(half(GROUP / 2)) << (GROUP / 2)
}

/// Prefetches the cache line of an entry into the second-level cache. A hint; the address may be invalid.
#[inline(always)]
pub(super) fn fetch_ahead(entry: *const Entry) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no visible effect.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(entry.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = entry;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::addr::{Level, Pfn};
    use crate::table::format::{Leaf, MemoryType, Perms};
    use crate::table::formats::{Arm64L48, Ept4, Ept4NoAd, Npt4, Pae, Sv48x4};
    use crate::table::{Version, memory::ENTRIES, node::TablePage};
    use alloc::boxed::Box;
    use proptest::prelude::*;

    fn word<F: Format>(what: u8, number: u64) -> Word {
        let perms = match number % 3 {
            0 => Perms::EXECUTE,
            1 => Perms::RX,
            _ => Perms::RWX,
        };
        let leaf = |accessed| Leaf {
            pfn: Pfn(number & 0xff_ffff),
            perms,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed,
            dirty: number.is_multiple_of(5),
        };
        match what {
            0 => Word::hole(Version(number >> 12)),
            1 => Word::withdrawn(&leaf(false)),
            2 => Word::frozen(number >> 12),
            3 => F::leaf(&leaf(true), Level::K4),
            _ => F::leaf(&leaf(false), Level::K4),
        }
    }

    fn agree<F: Format, B: Bit>(
        words: &[(u8, u64)],
        bit: impl Fn(Leaf) -> bool,
    ) -> Result<(), TestCaseError> {
        let page: Box<TablePage> = Box::new(TablePage(core::array::from_fn(|_| {
            // SAFETY: an entry is a word, and zero is a valid word.
            unsafe { core::mem::zeroed() }
        })));
        for (entry, &(what, number)) in page.0.iter().zip(words) {
            entry.store(word::<F>(what, number));
        }
        for group in page.0.chunks_exact(GROUP) {
            let group: &[Entry; GROUP] = group.try_into().unwrap();
            let mut young = 0;
            for (index, entry) in group.iter().enumerate() {
                let word = entry.load();
                young |= u64::from(F::is_present(word) && bit(F::read_leaf(word))) << index;
            }
            prop_assert_eq!(Scan::Portable.group::<F, B>(group), young, "{}", F::NAME);
            prop_assert_eq!(Scan::detect().group::<F, B>(group), young, "{}", F::NAME);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn all_scans_find_the_same(words in prop::collection::vec((0u8..5, any::<u64>()), ENTRIES)) {
            agree::<Ept4, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Npt4, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Pae, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Ept4NoAd, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Ept4, Written>(&words, |leaf| leaf.dirty)?;
            agree::<Npt4, Written>(&words, |leaf| leaf.dirty)?;
            agree::<Pae, Written>(&words, |leaf| leaf.dirty)?;
            agree::<Sv48x4, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Sv48x4, Written>(&words, |leaf| leaf.dirty)?;
            agree::<Arm64L48, Accessed>(&words, |leaf| leaf.accessed)?;
            agree::<Arm64L48, Written>(&words, |leaf| leaf.dirty)?;
        }
    }
}
