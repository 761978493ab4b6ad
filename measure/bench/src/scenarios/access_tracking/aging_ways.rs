//! How the ager asks which pages are young.

use super::tracked_memory::TrackedMemory;
use crate::scenarios::access_tracking::aging_run::{Asked, by_tables, page_by_page};
use crate::scenarios::threads_prelude::*;
use slat_mm::{Lru, Node};

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

/// One pass.
pub fn pass(world: &TrackedMemory, idle: &mut Idle, way: Way) -> Result<Asked, String> {
    let (space, hvas) = (&world.space, world.hvas());
    Ok(match way {
        Way::PageByPage => page_by_page(
            idle,
            hvas,
            |hva| space.lookup(hva, Access::Read).is_some(),
            |idle, page| space.young(idle, page, Young::Clear),
        ),
        Way::Tables => by_tables(&*world.vm, idle, hvas),
        Way::Generations => {
            let lru = space.lru().ok_or("there are no generations")?;
            let before = lru.stats().young;
            let seq = youngest(world);
            space.age(idle, Node(0), seq, true, true).map_err(|error| error.to_string())?;
            [world.vm.stats().leaves[0], lru.stats().young - before]
        }
    })
}

/// The youngest generation's number.
pub fn youngest(world: &TrackedMemory) -> u64 {
    let generations = world.space.lru().map(Lru::generations).unwrap_or_default();
    generations.iter().flat_map(|node| &node.generations).map(|generation| generation.seq).max().unwrap_or(0)
}
