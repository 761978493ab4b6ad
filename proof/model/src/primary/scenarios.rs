//! The scenarios: stores beside changes of the mappings.

use super::Op::{Evict, EvictChild, Fork, Load, Mmap, Mprotect, Munmap, Store, Write};
use super::Primary;
use crate::scenario::Family;

/// All of them.
pub fn families() -> Vec<Family<Primary>> {
    let scenarios = vec![
        Primary::new("munmap | store, in no table", false, &[&[Munmap(0)], &[Store(0)]]),
        Primary::new("munmap | store elsewhere, in no table", false, &[&[Munmap(0)], &[Store(1)]]),
        Primary::new("munmap | store, store", true, &[&[Munmap(0)], &[Store(0), Store(0)]]),
        Primary::new("munmap | mmap, store", true, &[&[Munmap(0)], &[Mmap(0), Store(0)]]),
        Primary::new(
            "munmap | mmap, store | store",
            false,
            &[&[Munmap(0)], &[Mmap(0), Store(0)], &[Store(0)]],
        ),
        Primary::new(
            "munmap, mmap | store | store elsewhere",
            true,
            &[&[Munmap(0), Mmap(0)], &[Store(0), Store(0)], &[Store(1)]],
        ),
        Primary::new("mprotect | store, store", true, &[&[Mprotect(0)], &[Store(0), Store(0)]]),
        Primary::new("mprotect | store | munmap", false, &[&[Mprotect(0)], &[Store(0)], &[Munmap(0)]]),
        Primary::new("fork | store to 0, to 1", true, &[&[Fork], &[Store(0), Store(1), Store(0)]]),
        Primary::new("fork | store to 0, to 1, in no table", false, &[&[Fork], &[Store(0), Store(1)]]),
        Primary::new(
            "fork | stores | munmap",
            true,
            &[&[Fork], &[Store(0), Store(1)], &[Munmap(0), Mmap(0)]],
        ),
        Primary::new(
            "fork | stores | stores",
            true,
            &[&[Fork], &[Store(0), Store(1)], &[Store(1), Store(0)]],
        ),
        Primary::new(
            "fork, munmap | stores | mprotect elsewhere",
            true,
            &[&[Fork, Munmap(0)], &[Store(0), Store(0)], &[Mprotect(1)]],
        ),
        Primary::new("evict | store, store", true, &[&[Evict(0)], &[Store(0), Store(0)]]),
        Primary::new(
            "evict, host's write | evict | load",
            true,
            &[&[Evict(0), Write(0)], &[Evict(0)], &[Load(0)]],
        ),
        Primary::new("fork, evict | store, store", true, &[&[Fork, Evict(0)], &[Store(0), Store(0)]]),
        Primary::new("fork, evict child | store", true, &[&[Fork, EvictChild(0)], &[Store(0), Store(0)]]),
        Primary::new(
            "fork, evict child | evict | store",
            true,
            &[&[Fork, EvictChild(0)], &[Evict(0)], &[Store(0), Store(0)]],
        ),
    ];
    vec![Family { name: "primary", scenarios }]
}
