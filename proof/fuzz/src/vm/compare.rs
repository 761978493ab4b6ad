//! The comparison of tables, counters, dirty pages and TLBs with the model.

use super::step::IDS;
use super::tables::{Leaf, leaf};
use super::tlb::Cached;
use super::vm_and_model::Machine;
use slat::table::{Entry, Kind, TableMemory};
use slat::{Format, Gfn, Level, Pfn, SlotId, SpaceId, Span};
use std::collections::BTreeMap;

/// The contents of one address space, read from its tables.
#[derive(Debug, Default)]
struct Found {
    leaves: BTreeMap<u64, Leaf>,
    tables: u64,
}

impl<F: Format> Machine<'_, F> {
    /// Compares everything with the model.
    pub fn compare(&mut self) {
        self.vm.collect(&mut self.idle);
        let (mut tables, mut leaves) = (0, [0; 3]);
        for number in 0..2 {
            let mut found = Found::default();
            self.read(
                (self.vm.space(SpaceId(number as u8)).unwrap().root(), self.rules().levels),
                0,
                &mut found,
            );
            let space = &self.spaces[number];
            assert_same(&found.leaves, &space.tables.leaves);
            assert_eq!(found.tables, space.tables.count(), "tables");
            tables += found.tables;
            for leaf in found.leaves.values() {
                leaves[usize::from(leaf.level.number()) - 1] += 1;
            }
            drop(self.vcpus[number].enter(&mut self.idle, &mut self.tlbs[number]));
            self.tlbs[number].0.iter().for_each(|cached| self.check_cached(number, cached));
            self.compare_logs(number);
        }
        assert_eq!(self.vm.stats().leaves, leaves, "leaves counted");
        assert_eq!(self.vm.table_pages(&mut self.idle).reachable, tables, "tables counted");
        let mut seen = BTreeMap::new();
        self.vm.memory().lockless(&mut self.idle).for_each(Span::new(Gfn(0), Gfn(u64::MAX)), |mapping| {
            seen.insert(mapping.gfns.start.0, mapping.leaf.pfn);
        });
        assert!(
            seen.into_iter().eq(self.spaces[0].tables.leaves.iter().map(|(&first, leaf)| (first, leaf.pfn)))
        );
    }

    /// Reads a table, and the tables below it.
    fn read(&self, (table, level): (Pfn, Level), first: u64, found: &mut Found) {
        found.tables += 1;
        for index in 0..512_u64.min(1 << (F::FRAME_BITS - level.shift())) {
            // SAFETY: a table page that is linked, there is no other thread, and an index inside it.
            let entry = unsafe { self.vm.tables().at(table).cast::<Entry>().add(index as usize).as_ref() };
            let (word, first) = (entry.load(), first + index * level.pages());
            match word.kind::<F>(level) {
                Kind::Table(below) => self.read((below, level.down()), first, found),
                Kind::Leaf | Kind::Withdrawn => _ = found.leaves.insert(first, leaf::<F>(word, level)),
                Kind::Hole(_) | Kind::Mmio(_) => {}
                Kind::Frozen(mark) => panic!("frozen for ever, by {mark}"),
            }
        }
    }

    /// Checks that a TLB's translation agrees with the tables.
    fn check_cached(&self, space: usize, cached: &Cached) {
        let (space, span) = (&self.spaces[space], cached.span());
        let mut at = span.start;
        for first in space.tables.over(span) {
            let leaf = space.tables.leaves[&first];
            let frames = (leaf.pfn.0.wrapping_sub(first), cached.pfn.0.wrapping_sub(span.start.0));
            assert!(first <= at.0 && frames.0 == frames.1, "a stale translation: {cached:?}, now {leaf:?}");
            assert!(leaf.write || !cached.write, "a stale permission: {cached:?}, now {leaf:?}");
            at = leaf.span(first).end;
        }
        assert!(at >= span.end, "a stale translation: {cached:?}");
        if cached.write
            && (cached.dirty || !space.rules.by_bits)
            && let Some(slot) = space.slot_of(span.start.0)
            && let Some(log) = space.logs.get(&slot.id.0)
        {
            let page = span.start.0 - slot.gfns.start.0;
            let dirty = log.pages.range(page..page + span.len()).count() as u64;
            assert_eq!(dirty, span.len(), "stores go unnoticed: {cached:?}");
        }
    }

    fn compare_logs(&mut self, number: usize) {
        let slots = self.slots(number);
        for id in 0..IDS {
            let space = &self.spaces[number];
            let log = space.logs.get(&id).map(|log| &log.pages);
            let words = space.slots.get(&id).map_or(0, |slot| slot.gfns.len().div_ceil(64));
            let mut bits = vec![0; words as usize];
            let said = slots.dirty_bits(&mut self.idle, SlotId(id), &mut bits).ok();
            assert_eq!(said, log.map(|pages| pages.len() as u64), "dirty pages");
            let mut expected = vec![0; words as usize];
            for page in log.into_iter().flatten() {
                expected[(page / 64) as usize] |= 1 << (page % 64);
            }
            assert_eq!(bits, expected, "dirty pages");
        }
    }
}

fn assert_same(found: &BTreeMap<u64, Leaf>, expected: &BTreeMap<u64, Leaf>) {
    if found != expected {
        let differ = |a: &BTreeMap<u64, Leaf>, b: &BTreeMap<u64, Leaf>| -> Vec<_> {
            let other = a.iter().filter(|(first, leaf)| b.get(first) != Some(leaf));
            other.map(|(first, leaf)| (*first, *leaf)).take(4).collect()
        };
        let (there, missing) = (differ(found, expected), differ(expected, found));
        panic!("the tables hold {there:x?} and so on, the model {missing:x?} and so on");
    }
}
