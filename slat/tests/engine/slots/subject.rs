//! slat as the subject of a walk. Compared at every step: the answer, with the broken rule and the old slot; all
//! content; look-ups where slots begin and end; generations; dirty logs.

use super::oracle::{Change, LOG_DIRTY, Limits, Oracle, PAGE, READONLY, Record, Request, Rule};
use super::requests::Requests;
use super::walk::{Subject, Tally, walk};
use crate::common::random::Random;
use crate::common::thorough::thorough;
use slat::memslots::Generation;
use slat::slots::{self, Region};
use slat::table::formats::Ept5;
use slat::*;
use std::collections::{BTreeMap, BTreeSet};

/// Host addresses for the tests. Nothing is mapped there, and nothing is read.
pub const ARENA: u64 = 0x7000_0000_0000;

/// A host with nothing behind its addresses.
pub struct Nothing;

impl Host for Nothing {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Pages of a slot whose log is read only where all slots are compared.
const LARGE_LOG: u64 = 1 << 14;

/// Period of checks: one in this many compares all slots, the others one slot and its surroundings; at night each
/// compares all.
const CONTENT_EVERY: u64 = 8;

fn content_every() -> u64 {
    thorough(1, CONTENT_EVERY)
}

/// A VM without vCPUs, and the expected values of its generations and dirty logs.
pub struct Slat {
    pub vm: Vm<Ept5, Nothing>,
    pub idle: Idle,
    generations: Vec<Generation>,
    /// By address space and id: pages marked so far, of slots that log.
    dirty: BTreeMap<(u32, u32), BTreeSet<u64>>,
    checks: u64,
    content_every: u64,
}

/// Returns `record` as slat has it.
pub fn slot(id: u32, record: &Record) -> Slot {
    let Record { gfn, pages, hva, flags } = *record;
    Slot {
        readonly: flags & READONLY != 0,
        log_dirty: flags & LOG_DIRTY != 0,
        ..Slot::new(SlotId(id), Gfn(gfn), pages, Hva(hva))
    }
}

/// Returns `request` as slat takes it; the address space is chosen elsewhere.
pub fn region(request: &Request) -> Region {
    let &Request { id, flags, gpa, bytes, hva, .. } = request;
    Region { slot: SlotId(id), flags, gpa: Gpa(gpa), bytes, hva: Hva(hva) }
}

/// Returns slat's answer for this answer of the oracle.
fn in_slats_words(id: u32, change: Change) -> slots::Change {
    match change {
        Change::Created => slots::Change::Created,
        Change::Deleted(old) => slots::Change::Deleted(slot(id, &old)),
        Change::Moved(old) => slots::Change::Moved(slot(id, &old)),
        Change::Flags(old) => slots::Change::Flags(slot(id, &old)),
        Change::Nothing => slots::Change::Nothing,
    }
}

/// Whether `error` names the rule, and the requesting slot.
fn names(error: SlotError, id: u32, rule: Rule) -> bool {
    use slots::Rule as Named;
    let same = match error.rule {
        Named::Id { .. } => rule == Rule::Id,
        Named::UnknownFlags(_) => rule == Rule::Flags,
        Named::Size => rule == Rule::BytesAligned,
        Named::GuestAddress => rule == Rule::GpaAligned,
        Named::HostAddress(_) => rule == Rule::HvaAligned || rule == Rule::HvaReach,
        Named::Wraps => rule == Rule::Wraps,
        Named::TooLong => rule == Rule::TooManyPages,
        Named::Missing => rule == Rule::Missing,
        Named::Fixed(old) => {
            old.id.0 == id && matches!(rule, Rule::SameSize | Rule::SameHva | Rule::SameReadonly)
        }
        Named::Overlaps(other) => other.id.0 != id && rule == Rule::Overlaps,
        Named::Reach(_) => rule == Rule::GpaReach,
        _ => false,
    };
    same && error.id == SlotId(id) && error.errno() == rule.errno()
}

impl Slat {
    pub fn new(limits: Limits) -> Self {
        assert!(limits.gfn_end.is_power_of_two(), "a number of address bits");
        let vm = Vm::<Ept5, _>::builder(Nothing)
            .max_slots(limits.ids)
            .address_spaces(limits.spaces as u8)
            .address_bits(limits.gfn_end.ilog2() + PAGE_SHIFT)
            .host_addresses(Span::new(Hva(0), Hva(limits.hva_end)))
            .build()
            .unwrap();
        let idle = Idle::take().expect("one VM of this kind for each thread");
        let (generations, dirty) = (Vec::new(), BTreeMap::new());
        let mut slat = Self { vm, idle, generations, dirty, checks: 0, content_every: content_every() };
        slat.generations = slat.generations_now();
        slat
    }

    fn generations_now(&self) -> Vec<Generation> {
        (0..).map_while(|space| Some(self.vm.space(SpaceId(space))?.generation())).collect()
    }

    /// Checks that the generation of `changed` has advanced, and no other.
    pub fn check_generations(&mut self, changed: Option<u32>) {
        let now = self.generations_now();
        for (space, (before, after)) in (0..).zip(self.generations.iter().zip(&now)) {
            let advanced = if changed == Some(space) { after > before } else { after == before };
            assert!(advanced && !after.is_in_progress(), "space {space}: {before:?}, then {after:?}");
            assert_eq!(after.number() % now.len() as u64, u64::from(space), "the space's own numbers");
        }
        self.generations = now;
    }

    /// Checks the dirty logs after a change: moves keep them, the flag or the slot's deletion ends them, new ones begin
    /// empty.
    fn follow(&mut self, request: &Request, change: Change) {
        let key = (request.space, request.id);
        let logs = request.bytes != 0 && request.flags & LOG_DIRTY != 0;
        let logged = match change {
            Change::Moved(old) | Change::Flags(old) => old.flags & LOG_DIRTY != 0,
            Change::Nothing => return,
            Change::Created | Change::Deleted(_) => false,
        };
        if !(logs && logged) {
            self.dirty.remove(&key);
        }
        if logs {
            self.dirty.entry(key).or_default();
        }
    }

    /// Queries all slots of all address spaces in every way.
    pub fn check_content(&mut self, oracle: &Oracle) {
        for space in 0..oracle.limits.spaces {
            let expected: Vec<_> =
                oracle.by_gfn(space).iter().map(|(id, record)| slot(*id, record)).collect();
            let slots = self.vm.space(SpaceId(space as u8)).unwrap();
            let mut all = Vec::new();
            slots.for_each(&mut self.idle, |slot| all.push(slot));
            assert_eq!(all, expected);
            assert_eq!((slots.len(), slots.is_empty()), (all.len(), all.is_empty()));
            let snapshot = slots.snapshot(&mut self.idle);
            assert_eq!(snapshot.len(), all.len());
            assert_eq!(snapshot.generation(), self.generations[space as usize]);
            for slot in all {
                assert_eq!(snapshot.get(slot.id), Some(slot));
                assert_eq!(snapshot.find(slot.gfns.start), Some(slot));
                assert_eq!(snapshot.find(Gfn(slot.gfns.end.0 - 1)), Some(slot));
            }
        }
    }
}

impl Subject for Slat {
    fn ask(&mut self, request: &Request, expected: Result<Change, Rule>) -> Result<(), String> {
        let space = u8::try_from(request.space).ok();
        let Some(slots) = space.and_then(|space| self.vm.space(SpaceId(space))) else {
            // There is no such address space to ask: counts as EINVAL, whatever else is wrong.
            return if expected.is_err_and(|rule| rule.errno() == Rule::Space.errno()) {
                Ok(())
            } else {
                Err("slat has no such address space".into())
            };
        };
        let said = slots.set(&mut self.idle, region(request));
        match (expected, said) {
            (Ok(change), Ok(told)) if told == in_slats_words(request.id, change) => {
                self.check_generations((change != Change::Nothing).then_some(request.space));
                self.follow(request, change);
                Ok(())
            }
            (Err(rule), Err(error)) if names(error, request.id, rule) => {
                self.check_generations(None);
                Ok(())
            }
            _ => Err(format!("slat says {said:x?}")),
        }
    }

    fn check(&mut self, oracle: &Oracle, random: &mut Random) {
        self.checks += 1;
        let everything = self.checks.is_multiple_of(self.content_every);
        if everything {
            self.check_content(oracle);
        }
        let space = random.below(u64::from(oracle.limits.spaces)) as u32;
        let by_gfn = oracle.by_gfn(space);
        let slots = self.vm.space(SpaceId(space as u8)).unwrap();
        let Some(&(id, record)) = by_gfn.get(random.below(by_gfn.len().max(1) as u64) as usize) else {
            return;
        };

        // Just outside of a slot, where its neighbour is or no slot; ids that may have no slot.
        for gfn in [record.gfn.wrapping_sub(1), record.end(), random.below(oracle.limits.gfn_end), u64::MAX] {
            let expected = oracle.find(space, gfn).map(|(id, record)| slot(id, &record));
            assert_eq!(slots.find(&mut self.idle, Gfn(gfn)), expected, "{gfn:#x}");
        }
        for id in [id.wrapping_add(1), random.below(300) as u32, u32::MAX] {
            let expected = oracle.slots(space).get(&id).map(|record| slot(id, record));
            assert_eq!(slots.get(&mut self.idle, SlotId(id)), expected);
        }

        // Ranges around a slot's edges, to the byte.
        let near = |random: &mut Random, at: u64, unit: u64| {
            at.saturating_add(random.below(40 * unit)).saturating_sub(random.below(40 * unit))
        };
        let (end, hva_end) = (record.end(), record.hva + record.pages * PAGE);
        let gfns = Span::new(Gfn(near(random, record.gfn, 1)), Gfn(near(random, end, 1)));
        let hvas = Span::new(Hva(near(random, record.hva, PAGE)), Hva(near(random, hva_end, PAGE)));
        let snapshot = slots.snapshot(&mut self.idle);
        let reached: Vec<_> = snapshot.range(gfns).map(|slot| slot.id.0).collect();
        let within = |(_, slot): &&(u32, Record)| {
            gfns.start < gfns.end && slot.gfn < gfns.end.0 && gfns.start.0 < slot.end()
        };
        assert_eq!(reached, by_gfn.iter().filter(within).map(|(id, _)| *id).collect::<Vec<_>>(), "{gfns:?}");
        let mut behind = Vec::new();
        snapshot.over_hvas(hvas, |gfns| behind.push((gfns.start.0, gfns.end.0)));
        behind.sort_unstable();
        assert_eq!(behind, oracle.over_hvas(space, hvas.start.0, hvas.end.0), "{hvas:?}");
        drop(snapshot);

        // The log: one more page of it, if there is a log.
        let page = random.below(record.pages);
        slots.mark_dirty(Span::sized(Gfn(record.gfn + page), 1));
        let expected = self.dirty.get_mut(&(space, id)).map(|expected| {
            expected.insert(page);
            &*expected
        });
        if record.pages > LARGE_LOG && !everything {
            return;
        }
        let mut dirty = Vec::new();
        let logs = slots.dirty(&mut self.idle, SlotId(id), |gfn| dirty.push(gfn.0 - record.gfn));
        assert_eq!(logs.is_ok(), expected.is_some());
        if let Some(expected) = expected {
            assert!(dirty.iter().eq(expected), "{dirty:?} of {expected:?}");
        }
    }

    fn audit(&mut self, oracle: &Oracle) {
        self.check_content(oracle);
    }
}

/// KVM's limits, then others: few ids and frames, all host addresses; many ids and address spaces.
#[test]
fn slat_answers_and_looks_as_the_oracle_does() {
    let kvm = Limits { ids: 32_764, spaces: 2, gfn_end: 1 << 40, hva_end: (1 << 47) - PAGE };
    let small = Limits { ids: 300, spaces: 1, gfn_end: 1 << 26, hva_end: u64::MAX };
    let large = Limits { ids: u32::MAX, spaces: 3, gfn_end: 1 << 36, hva_end: (1 << 56) - PAGE };
    let mut tally = Tally::default();
    for (seed, limits, most) in [
        (11, kvm, u64::MAX),
        (12, kvm, 1 << 14),
        (13, small, 1 << 10),
        (14, large, 1 << 20),
        (15, large, 512),
    ] {
        let mut slat = Slat::new(limits);
        let mut requests = Requests::new(seed, limits, ARENA, most);
        let walked = walk(seed, 4_000, limits, &mut requests, &mut [&mut slat]);
        tally.add(walked.unwrap_or_else(|disagreement| panic!("{disagreement}")));
    }
    tally.must_be_worth_something();
}
