use super::*;
use slat::TableMemory;
use slat::table::memory::CHUNK_PAGES;
use std::sync::Arc;

const FRAME: usize = PAGE_SIZE as usize;

fn arena(blocks: u64) -> Arc<Arena> {
    Arena::builder().limit(blocks * Level::M2.bytes()).poison(0xdd).build().unwrap()
}

fn bytes(arena: &Arena, pfn: Pfn, level: Level) -> &[u8] {
    // SAFETY: tests read pages that they hold, or freed pages that no other thread uses.
    unsafe { std::slice::from_raw_parts(arena.frame(pfn), level.bytes() as usize) }
}

#[test]
fn an_arena_larger_than_the_machine_costs_nothing_until_used() {
    let arena = Arena::builder().limit(1 << 42).build().unwrap();
    let page = arena.zeroed(Level::M2).unwrap();
    assert!(bytes(&arena, page.pfn(), Level::M2).iter().all(|&byte| byte == 0));
    drop(page);
    assert_eq!(arena.stats().in_use, 0);
}

#[test]
fn limits_that_hold_no_block_are_refused() {
    let limit = |bytes| Arena::builder().limit(bytes).build().map(drop);
    assert_eq!(limit((2 << 20) - 1), Err(MmError::BadLimit((2 << 20) - 1)));
    assert_eq!(limit(u64::MAX), Err(MmError::BadLimit(u64::MAX)));
    assert_eq!(limit(2 << 20), Ok(()));
}

#[test]
fn the_last_frame_is_given_out_then_an_error_then_all_comes_back() {
    let arena = arena(2);
    let held: Vec<_> = (0..1024).map(|_| arena.page(Level::K4).unwrap()).collect();
    let full = arena.page(Level::K4).map(drop);
    assert_eq!(full, Err(MmError::OutOfFrames(Level::K4)));
    assert!(held.iter().all(|page| page.pfn().0 >= BLOCK), "no frame lies in the first 2 MiB");
    drop(held);
    let huge: Vec<_> = (0..2).map(|_| arena.page(Level::M2).unwrap()).collect();
    assert_eq!(arena.page(Level::M2).map(drop), Err(MmError::OutOfFrames(Level::M2)));
    drop(huge);
    assert_eq!(arena.page(Level::G1).map(drop), Err(MmError::OutOfFrames(Level::G1)));
    assert_eq!(arena.stats(), ArenaStats { frames: 1024, in_use: 0, tables: 0, stale_writes: 0 });
}

/// The arena takes frames from other threads' lists before it reports that none are left.
#[test]
fn lists_of_other_threads_are_emptied_before_memory_is_out() {
    let arena = arena(1);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(arena.page(Level::K4).unwrap()));
    });
    drop(arena.page(Level::M2).expect("one frame was on another thread's list"));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(arena.page(Level::K4).unwrap()));
    });
    let held: Vec<_> = std::iter::from_fn(|| arena.page(Level::K4).ok()).collect();
    assert_eq!(held.len(), 512);
}

#[test]
fn freed_frames_are_poisoned_and_used_ones_zeroed_on_demand() {
    let arena = arena(1);
    let page = arena.page(Level::K4).unwrap();
    let pfn = page.pfn();
    // SAFETY: held.
    unsafe { arena.frame(pfn).write_bytes(7, FRAME) };
    drop(page);
    assert_eq!(arena.references(pfn), 0);
    assert!(bytes(&arena, pfn, Level::K4).iter().all(|&byte| byte == 0xdd), "a stale reader sees poison");
    let again = arena.zeroed(Level::K4).unwrap();
    assert_eq!(again.pfn(), pfn, "last freed, first used");
    assert!(bytes(&arena, pfn, Level::K4).iter().all(|&byte| byte == 0));
    drop(again);
    assert_eq!(arena.stats().stale_writes, 0);
    // SAFETY: no other thread uses it. This write is the bug to detect.
    unsafe { arena.frame(pfn).add(100).write(1) };
    drop(arena.page(Level::M2).unwrap());
    assert_eq!(arena.stats().stale_writes, 1, "a stale writer is counted");
}

#[test]
fn a_frame_is_free_when_its_last_reference_goes() {
    let arena = arena(1);
    let huge = arena.page(Level::M2).unwrap();
    let pfn = huge.pfn();
    arena.share(Span::sized(pfn + 3, 2));
    drop(huge);
    assert_eq!(arena.stats().in_use, 2);
    assert_eq!([2, 3, 4, 5].map(|n| arena.references(pfn + n)), [0, 1, 1, 0]);
    let mut released = arena.released();
    released.add(pfn + 4, Level::K4);
    released.add(pfn + 3, Level::K4);
    assert_eq!(arena.stats().in_use, 2, "not before it is dropped");
    drop(released);
    assert_eq!(arena.stats().in_use, 0);
    drop(arena.page(Level::M2).expect("the block is whole again"));
}

#[test]
fn table_chunks_are_aligned_counted_and_limited() {
    let arena = arena(1);
    let tables = ArenaHandle::from(&arena);
    let chunks: Vec<_> = std::iter::from_fn(|| tables.lend(CHUNK_PAGES)).collect();
    assert_eq!((chunks.len(), arena.stats().tables, arena.stats().in_use), (8, 512, 512));
    for &(chunk, pfn) in &chunks {
        assert_eq!(chunk.as_ptr().addr() % slat::table::memory::CHUNK_BYTES, 0);
        assert_eq!(tables.at(pfn), chunk);
        // SAFETY: from this memory, once, unused.
        unsafe { tables.take_back(chunk, pfn, CHUNK_PAGES) };
    }
    assert_eq!((arena.stats().tables, arena.stats().in_use), (0, 0));
}

#[test]
fn each_node_has_whole_blocks_and_every_frame_has_a_node() {
    let arena = Arena::builder().limit(7 * Level::M2.bytes()).nodes(3).build().unwrap();
    let stats: Vec<_> = (0..3).map(|node| arena.node_stats(Node(node)).frames).collect();
    assert_eq!(stats, [2 * BLOCK, 2 * BLOCK, 3 * BLOCK]);
    let nodes = [1, 2, 3, 4, 5, 6, 7].map(|block| {
        let of = [block * BLOCK, block * BLOCK + 511].map(|pfn| arena.node_of(Pfn(pfn)).0);
        assert_eq!(of[0], of[1]);
        of[0]
    });
    assert_eq!(nodes, [0, 0, 1, 1, 2, 2, 2]);
    for nodes in [0, 8] {
        let refused = Arena::builder().limit(7 * Level::M2.bytes()).nodes(nodes).build().map(drop);
        assert_eq!(refused, Err(MmError::BadNodes(nodes)));
    }
}

#[test]
fn memory_comes_from_the_threads_node_and_from_the_next_where_it_has_none() {
    let arena = Arena::builder().limit(3 * Level::M2.bytes()).nodes(3).poison(0xdd).build().unwrap();
    let of = |page: &crate::Held<'_>| arena.node_of(page.pfn()).0;
    for node in [1, 4] {
        Node(node).run_here();
        let (small, tables) = (arena.page(Level::K4).unwrap(), ArenaHandle::from(&arena));
        let (chunk, pfn) = tables.lend(CHUNK_PAGES).unwrap();
        assert_eq!([of(&small), arena.node_of(pfn).0], [1, 1]);
        // SAFETY: from this memory, once, unused.
        unsafe { tables.take_back(chunk, pfn, CHUNK_PAGES) };
    }
    let huge = [0; 3].map(|_| arena.page(Level::M2).unwrap());
    assert_eq!(huge.each_ref().map(of), [1, 2, 0]);
    assert!(arena.page(Level::K4).is_err(), "every block is full");
    let [one, two, _zero] = huge;
    drop(two);
    assert_eq!(arena.page_on(Node(1), Level::K4).map(drop), Err(MmError::OutOfFrames(Level::K4)));
    assert_eq!(of(&arena.page(Level::K4).unwrap()), 2, "the next node");
    drop(one);
    assert_eq!(of(&arena.page(Level::K4).unwrap()), 1, "its own node again");
    assert_eq!([0, 1, 2].map(|node| arena.node_stats(Node(node)).in_use), [BLOCK, 0, 0]);
}

/// `Released` joins neighbours at the border of two nodes to one run.
#[test]
fn a_run_over_two_nodes_goes_back_to_both() {
    let arena = Arena::builder().limit(2 * Level::M2.bytes()).nodes(2).build().unwrap();
    let both = [0, 1].map(|node| arena.page_on(Node(node), Level::M2).unwrap().keep());
    assert_eq!(both[0] + BLOCK, both[1]);
    let mut released = arena.released();
    for pfn in both {
        released.add(pfn, Level::M2);
    }
    drop(released);
    assert_eq!([0, 1].map(|node| arena.node_stats(Node(node)).in_use), [0, 0]);
    drop([0, 1].map(|node| arena.page_on(Node(node), Level::M2).unwrap()));
}
