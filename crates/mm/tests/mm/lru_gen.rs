//! Tests of the kernel's text interface over address spaces: what commands do, and which error a refused
//! command returns.

use crate::fixture::at;
use slat::{Idle, PAGE_SIZE};
use slat_mm::lru_gen::{LruGen, LruGenError};
use slat_mm::*;
use std::sync::Arc;

const PAGES: u64 = 300;

/// An address space with pages. It is memcg 1.
struct Machine {
    idle: Idle,
    space: Arc<AddressSpace>,
    lru_gen: Arc<LruGen>,
}

impl Machine {
    fn new() -> Self {
        let mut idle = Idle::take().unwrap();
        let arena = Arena::builder().limit(64 << 20).build().unwrap();
        let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
        let space = AddressSpace::builder(&arena).swap(&swap).lru(LruSettings::default()).build().unwrap();
        let len = PAGES * PAGE_SIZE;
        space.mmap(Place::Fixed(at(0)), len, Prot::ReadWrite, Backing::Anonymous).unwrap();
        for page in 0..PAGES {
            space.write(&mut idle, at(page), &[1]).unwrap();
        }
        let lru_gen = Arc::new(LruGen::new());
        assert_eq!(lru_gen.add("/one", &space), 1);
        Self { idle, space, lru_gen }
    }

    fn write(&mut self, text: &str) -> Result<(), LruGenError> {
        self.lru_gen.write(&mut self.idle, text)
    }

    fn errno(&mut self, text: &str) -> i32 {
        self.write(text).unwrap_err().errno()
    }

    /// The number and the pages of each generation, as the interface shows them.
    fn read(&self) -> Vec<(u64, u64)> {
        let text = self.lru_gen.read();
        let lines = text.lines().skip(2).map(|line| {
            let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap());
            (numbers.next().unwrap(), numbers.nth(1).unwrap())
        });
        lines.collect()
    }
}

#[test]
fn commands_age_and_evict() {
    let mut machine = Machine::new();
    assert!(machine.lru_gen.read().starts_with("memcg     1 /one\n node     0\n"));
    assert_eq!(machine.read(), [(0, 0), (1, 0), (2, 0), (3, PAGES)]);
    // A page used since it came in belongs to the generation that ends.
    machine.write("+ 1 0 3; + 1 0 4 1 1,+ 1 0 5\n").unwrap();
    assert_eq!(machine.read(), [(3, PAGES), (4, 0), (5, 0), (6, 0)]);
    machine.write("+ 1 0 5").expect("another command has made the generation");
    assert_eq!(machine.read().len(), 4);
    machine.write("- 1 0 3 200 7").unwrap();
    assert_eq!(machine.read()[0], (3, PAGES - 7));
    machine.write("- 1 0 3 60 0").unwrap();
    assert_eq!(machine.read()[0], (3, PAGES - 7));
    machine.write("- 1 0 4").unwrap();
    assert_eq!(machine.read().iter().map(|(_, pages)| pages).sum::<u64>(), 0);
    assert_eq!(machine.space.lru().unwrap().stats().evicted, PAGES);
}

#[test]
fn refusals_have_the_kernels_error_numbers() {
    let mut machine = Machine::new();
    for text in
        ["+ 1 0 4", "- 1 0 2", "- 1 0 3", "+ 2 0 3", "+ 0 0 3", "+ 1 1 3", "- 1 256 0", "- 1 0 0 202", "x"]
    {
        assert_eq!(machine.errno(text), libc::EINVAL, "{text}");
    }
    assert_eq!(machine.errno("+ 1 0 3 1 0"), libc::ERANGE, "there are four generations, and no force");
    assert_eq!(machine.errno("+ 1 0 3; nonsense; + 1 0 4"), libc::EINVAL);
    assert_eq!(
        machine.read().last(),
        Some(&(4, 0)),
        "commands before the mistake are executed, later ones are not"
    );

    let plain = AddressSpace::builder(machine.space.arena()).build().unwrap();
    assert_eq!(machine.lru_gen.add("/two", &plain), 2);
    assert_eq!(machine.errno("+ 2 0 3"), libc::EINVAL, "memcg 2 has no LRU");
    assert!(!machine.lru_gen.read().contains("/two"));
    let Machine { mut idle, space, lru_gen } = machine;
    drop(space);
    assert_eq!(lru_gen.write(&mut idle, "+ 1 0 4").unwrap_err(), LruGenError::NoSuchMemcg(1));
    assert_eq!(lru_gen.read(), "");
}

#[test]
fn an_eviction_that_is_interrupted_says_so() {
    let mut machine = Machine::new();
    machine.write("+ 1 0 3, + 1 0 4, + 1 0 5").unwrap();
    let lru_gen = machine.lru_gen.clone();
    // As a signal would: in the middle of the eviction.
    machine.space.lru().unwrap().on_evict(Box::new(move |_| lru_gen.interrupt()));
    assert_eq!(machine.errno("- 1 0 3"), libc::EINTR);
    let left = machine.read()[0].1;
    assert!((1..PAGES).contains(&left), "{left} pages are left");
}
