//! The floors: what any pass has to do at least.

use super::ground::Ground;
use slat::Format;
use slat::table::Entry;
use slat::table::formats::Ept4;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reads every leaf table in the order of memory, as fast as this machine does.
pub fn read(ground: &Ground) -> u64 {
    let mut any = 0;
    for table in ground.in_memory() {
        any |= read_table(table);
    }
    black_box(any);
    0
}

fn read_table(table: &[Entry; 512]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and nobody writes to the tables meanwhile.
        return unsafe { read_table_avx2(table) };
    }
    table.iter().fold(0, |any, entry| any | entry.peek().0)
}

/// # Safety
/// The processor has AVX2, and nobody writes to the table.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn read_table_avx2(table: &[Entry; 512]) -> u64 {
    use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm256_or_si256, _mm256_setzero_si256};
    let vectors: *const __m256i = table.as_ptr().cast();
    let mut any = [_mm256_setzero_si256(); 4];
    for at in (0..128).step_by(4) {
        for (lane, any) in any.iter_mut().enumerate() {
            // SAFETY: inside the page, which is aligned.
            *any = _mm256_or_si256(*any, unsafe { _mm256_load_si256(vectors.add(at + lane)) });
        }
    }
    let all = _mm256_or_si256(_mm256_or_si256(any[0], any[1]), _mm256_or_si256(any[2], any[3]));
    // SAFETY: 32 bytes either way.
    let words: [u64; 4] = unsafe { std::mem::transmute(all) };
    words.into_iter().fold(0, |any, word| any | word)
}

/// One locked read-modify-write for each entry, which changes nothing.
pub fn locked_rmw(ground: &Ground) -> u64 {
    for table in ground.in_memory() {
        for entry in table {
            // SAFETY: an entry is one atomic word.
            let word: &AtomicU64 = unsafe { &*std::ptr::from_ref(entry).cast() };
            black_box(word.fetch_and(!(Ept4::ACCESSED & Ept4::DIRTY), Relaxed));
        }
    }
    0
}
