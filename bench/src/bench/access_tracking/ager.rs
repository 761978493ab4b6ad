//! The ager: it asks which pages are young.

use super::world::World;
use slat::{Access, Idle, PAGE_SIZE, SecondaryMmu, Span, Young};
use slat_cli::error::Error;
use slat_mm::{Lru, Node};
use std::time::{Duration, Instant};

/// How to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each page that the primary MMU has, by one call of every secondary MMU: as the kernel's passes do.
    PageByPage,
    /// The secondary MMU, table by table; then TLBs are asked to forget.
    Tables,
    /// A pass of the multi-gen LRU, forced: the primary's bits, the secondary MMU's, and the generations.
    Generations,
}

/// What an ager has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passes {
    pub passes: u64,
    pub time: Duration,
    /// Pages that were there to be asked about.
    pub pages: u64,
    /// Times that a page was young.
    pub young: u64,
    /// Pages whose bit was still set after the last pass: a link that a vCPU had cached said nothing of them.
    pub left: u64,
}

impl Passes {
    /// Milliseconds of a pass, on average.
    pub fn ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3 / self.passes.max(1) as f64
    }

    /// Nanoseconds of a page, on average.
    pub fn ns_a_page(&self) -> f64 {
        self.time.as_nanos() as f64 / self.pages.max(1) as f64
    }
}

/// Ages while `go_on`, with a `pause` after each pass, and once more.
pub fn age(
    world: &World,
    idle: &mut Idle,
    (way, pause): (Way, Duration),
    go_on: &dyn Fn() -> bool,
) -> Result<Passes, Error> {
    let mut all = Passes::default();
    loop {
        let last = !go_on();
        let began = Instant::now();
        let (pages, young) = pass(world, idle, way)?;
        all.time += began.elapsed();
        all.passes += 1;
        all.pages += pages;
        all.young += young;
        if last {
            world
                .vm
                .lockless(idle)
                .for_each(world.pages(), |found| all.left += u64::from(found.leaf.accessed));
            return Ok(all);
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

/// One pass: how many pages there were, and how many of them were young.
pub fn pass(world: &World, idle: &mut Idle, way: Way) -> Result<(u64, u64), Error> {
    let (space, hvas) = (&world.space, world.hvas());
    let mut young = 0;
    let pages = match way {
        Way::PageByPage => {
            let mut pages = 0;
            let mut hva = hvas.start;
            while hva < hvas.end {
                if space.lookup(hva, Access::Read).is_some() {
                    pages += 1;
                    young += u64::from(space.young(idle, Span::sized(hva, PAGE_SIZE), Young::Clear));
                }
                hva = hva + PAGE_SIZE;
            }
            pages
        }
        Way::Tables => {
            world.vm.age(idle, hvas, &mut |seen| young += u64::from(seen.count()));
            world.vm.forget(idle, hvas);
            world.vm.stats().leaves[0]
        }
        Way::Generations => {
            let lru = space.lru().ok_or_else(|| Error::Machine("there are no generations".into()))?;
            let before = lru.stats().young;
            let seq = youngest(world);
            space.age(idle, Node(0), seq, true, true).map_err(|error| Error::Machine(error.to_string()))?;
            young = lru.stats().young - before;
            world.vm.stats().leaves[0]
        }
    };
    Ok((pages, young))
}

/// The youngest generation's number.
pub fn youngest(world: &World) -> u64 {
    let generations = world.space.lru().map(Lru::generations).unwrap_or_default();
    generations.iter().flat_map(|node| &node.generations).map(|generation| generation.seq).max().unwrap_or(0)
}
