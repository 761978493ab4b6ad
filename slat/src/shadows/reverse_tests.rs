//! The reverse map beside a page of L1 that has very many places.

use super::Spare;
use super::hints::RmapHint;
use super::reverse::{Reverse, STRETCH, Stretches};
use crate::table::formats::Ept4;
use crate::table::memory::Heap;
use crate::table::pool::Cache;
use crate::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Span, Vm};

struct Nothing;

impl Host for Nothing {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Returns how many places are visited, and in how many stretches, for the first `frames` frames of L1. L2 has the first
/// one at many places: as a page of 4 KiB, and as a part of a page of 2 MiB.
fn visited(frames: u64) -> Option<(u64, u64)> {
    let vm = Vm::<Ept4, _>::builder(Nothing).build().unwrap();
    let reverse = Reverse::<Ept4>::new(&Heap, &vm.pool).unwrap();
    let (mut cache, mut spare) = (Cache::default(), Spare::default());
    for level in [Level::K4, Level::M2] {
        for g2 in (0..2 * STRETCH).map(|nth| Gfn(nth * Level::M2.pages())) {
            vm.pool.top_up(&Heap, &mut cache, 8, || false).unwrap();
            reverse.refill(&mut spare.hints, &mut cache);
            let hint = RmapHint { shadow: 0, g2 };
            reverse.add(&Heap, (&mut cache, &mut spare), (Gfn(0), level), hint, |_| false).unwrap();
        }
    }
    let (mut left, mut places) = (Stretches::new(Span::sized(Gfn(0), frames)), 0);
    let over = (1..100).find(|_| {
        reverse.stretch(&Heap, &mut left, |_, _, _| {
            places += 1;
            1
        });
        left.is_over()
    });
    vm.pool.give_back(cache.drain());
    over.map(|stretches| (places, stretches))
}

#[test]
fn many_places_of_two_sizes_are_visited_once_each() {
    for frames in [1, 2] {
        let (places, stretches) = visited(frames).expect("it comes to an end");
        assert!(places >= 4 * STRETCH, "{places}");
        assert!(stretches <= 6, "{stretches}");
    }
}
