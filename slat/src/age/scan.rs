//! 64 entries of a leaf table → a bit for each that is young.
//!
//! A pass over memory that nobody uses is bound by how fast tables can be read, so this loop is what it costs. An entry
//! is young where all of `A` and any of `PRESENT` is set: absent words have other things to say in A's place. Formats
//! without A ask for `PRESENT` alone.
//!
//! The AVX2 loop reads four entries at once. Entries change meanwhile, and in Rust's model a plain load that races with an
//! atomic store is undefined; so the loads are assembly, which is no load of the model's, and the loop of relaxed loads
//! below it says what they must find. It needs `std`, which can ask the processor and owns the vector registers: a kernel
//! that uses this crate without `std` has its guest's values in them.

use crate::table::{Entry, Format, Word};

/// Entries looked at together.
pub(super) const GROUP: usize = 64;

/// Whether the entry is a leaf, or a link, that was accessed.
#[inline(always)]
pub(super) fn is_young<F: Format>(word: Word) -> bool {
    let seen = word.0 & (F::ACCESSED | F::PRESENT);
    seen & F::ACCESSED == F::ACCESSED && seen != F::ACCESSED
}

/// How to look at a group, decided once for a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scan {
    /// Relaxed loads, one by one.
    Portable,
    /// Four at once.
    #[cfg(all(target_arch = "x86_64", feature = "std", not(miri), not(loom)))]
    Avx2,
}

impl Scan {
    /// The fastest that this processor has.
    #[inline]
    pub(crate) fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", feature = "std", not(miri), not(loom)))]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Portable
    }

    /// The young ones of a group.
    #[inline(always)]
    pub(super) fn group<F: Format>(self, entries: &[Entry; GROUP]) -> u64 {
        match self {
            Self::Portable => portable::<F>(entries),
            #[cfg(all(target_arch = "x86_64", feature = "std", not(miri), not(loom)))]
            // SAFETY: this variant is made where the processor has AVX2.
            Self::Avx2 => unsafe { avx2(entries, F::ACCESSED, F::ACCESSED | F::PRESENT) },
        }
    }
}

/// A cache line at a time: a line without any A in it is done with.
#[inline]
fn portable<F: Format>(entries: &[Entry; GROUP]) -> u64 {
    const LINE: usize = 8;
    let mut young = 0;
    for (line, entries) in entries.chunks_exact(LINE).enumerate() {
        let any = entries.iter().fold(0, |any, entry| any | entry.peek().0);
        let worth = if F::HARDWARE_AD { any & F::ACCESSED } else { any & F::PRESENT };
        if worth != 0 {
            for (index, entry) in entries.iter().enumerate() {
                young |= u64::from(is_young::<F>(entry.peek())) << (line * LINE + index);
            }
        }
    }
    young
}

/// # Safety
/// The processor has AVX2.
#[cfg(all(target_arch = "x86_64", feature = "std", not(miri), not(loom)))]
#[target_feature(enable = "avx2")]
unsafe fn avx2(entries: &[Entry; GROUP], accessed: u64, wanted: u64) -> u64 {
    use core::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_andnot_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64,
        _mm256_movemask_pd, _mm256_set1_epi64x,
    };
    const LANES: usize = 4;
    let accessed = _mm256_set1_epi64x(accessed.cast_signed());
    let wanted = _mm256_set1_epi64x(wanted.cast_signed());
    let mut young = 0;
    for group in 0..GROUP / LANES {
        let at = entries.as_ptr().wrapping_add(group * LANES);
        let words: __m256i;
        // SAFETY: reads 32 bytes of the group, each entry by one aligned 8-byte part of a load, which x86 makes whole; what
        // another thread stores meanwhile is seen or not.
        unsafe {
            core::arch::asm!("vmovdqu {words}, [{at}]", words = out(ymm_reg) words, at = in(reg) at,
                options(nostack, preserves_flags, readonly));
        }
        let seen = _mm256_and_si256(words, wanted);
        let has = _mm256_cmpeq_epi64(_mm256_and_si256(seen, accessed), accessed);
        let absent = _mm256_cmpeq_epi64(seen, accessed);
        let bits = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_andnot_si256(absent, has)));
        young |= u64::from(bits.cast_unsigned()) << (group * LANES);
    }
    young
}

/// Asks for the cache line of an entry that will be looked at soon. A hint: it may be anywhere.
#[inline(always)]
pub(super) fn fetch_ahead(entry: *const Entry) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64; a prefetch of any address does nothing that could be noticed.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(entry.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = entry;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::addr::{Level, Pfn};
    use crate::table::format::{Leaf, Perms};
    use crate::table::formats::{Ept4, Ept4NoAd, Npt4, Pae};
    use crate::table::{Version, memory::ENTRIES, memory::TablePage};
    use alloc::boxed::Box;
    use proptest::prelude::*;

    fn word<F: Format>(what: u8, number: u64) -> Word {
        let perms = if number.is_multiple_of(3) { Perms::EXECUTE } else { Perms::RX };
        let leaf = |accessed| Leaf {
            pfn: Pfn(number & 0xff_ffff),
            perms,
            host_writable: true,
            accessed,
            dirty: number.is_multiple_of(5),
        };
        match what {
            0 => Word::hole(Version(number >> 12)),
            1 => Word::tracked(&leaf(false)),
            2 => Word::frozen(number >> 12),
            3 => F::leaf(&leaf(true), Level::K4),
            _ => F::leaf(&leaf(false), Level::K4),
        }
    }

    fn agree<F: Format>(words: &[(u8, u64)]) -> Result<(), TestCaseError> {
        let page: Box<TablePage> = Box::new(TablePage(core::array::from_fn(|_| {
            // SAFETY: an entry is a word of zeroes.
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
                young |= u64::from(F::is_present(word) && F::read_leaf(word).accessed) << index;
            }
            prop_assert_eq!(Scan::Portable.group::<F>(group), young, "{}", F::NAME);
            prop_assert_eq!(Scan::detect().group::<F>(group), young, "{}", F::NAME);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn all_scans_find_the_same(words in prop::collection::vec((0u8..5, any::<u64>()), ENTRIES)) {
            agree::<Ept4>(&words)?;
            agree::<Npt4>(&words)?;
            agree::<Pae>(&words)?;
            agree::<Ept4NoAd>(&words)?;
        }
    }
}
