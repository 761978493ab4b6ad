//! Random tables of the real engine, look-up by look-up.
//!
//! ```text
//! each VM: its own policies, memslots near the tables' boundaries
//!   each round: the engine serves the faults of the round before
//!               every other round: a copy of every word of the tables
//!               look-ups: the answer, the entries on the path, the memory  compared with the words and the judge's record
//!               every word of the tables                                   compared with the copy
//!               changes by the host, the VMM and a migration
//! ```
//! The walker is compared with two things that share no code: the raw words by the format, and the judge's own state of
//! memslots and host. If those two disagree, the engine is wrong; if the walker disagrees with the words, the format or
//! the emulator is.

use crate::backing::{Backing, REGIONS};
use crate::expect;
use crate::machine_trait::{Answer, Bits, CODE_OFFSET, Difference, Machine};
use crate::modelled_vm::{Behind, ModelledVm, SPACES};
use crate::pattern::Pattern;
use crate::random::Random;
use crate::report::{Report, Verdict};
use crate::tables::{self, Shadow, Step};
use alloc::vec::Vec;
use slat::table::Word;
use slat::{
    Access, DirtyLog, Format, Gfn, Gpa, Idle, Level, MemoryType, PAGE_SHIFT, Pfn, Span, Splitting, Track,
    Translations, VcpuId, Vm,
};

/// Number of VMs in a run.
const VMS: u64 = 10;
/// Number of look-ups between two changes.
const ROUND: u64 = 48;

/// A look-up to make.
#[derive(Clone, Copy, Debug)]
struct LookUp {
    gpa: Gpa,
    access: Access,
    /// The engine has just handled its fault, so it must succeed.
    must: bool,
}

/// A machine as the engine's TLB.
pub(crate) struct Flusher<'m, M>(pub(crate) &'m mut M);

impl<M: Machine> Translations for Flusher<'_, M> {
    fn flush_all(&mut self) {
        self.0.flush();
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0.flush();
    }
}

/// Judges tables of format `F` by at least `lookups` look-ups of `machine`, and prints `WALK …`. The same seed gives
/// the same tables and look-ups.
pub fn judge<F: Format, M: Machine>(machine: &mut M, idle: &mut Idle, seed: u64, lookups: u64) -> Verdict {
    let pattern = Pattern::fill(machine);
    let mut random = Random::new(seed);
    let mut report = Report::<M>::new::<F>(machine, seed);
    for nth in 1..=VMS {
        let random = Random::new(random.next());
        one_vm::<F, M>(&mut report, idle, (random, pattern), lookups * nth / VMS);
    }
    if let Some((address, word)) = pattern.broken() {
        report.differ(format_args!("the word at {address:#x} is {word:#x}: a store was made there"));
    }
    report.finish()
}

/// Runs rounds in one VM, until the total of look-ups reaches a number.
fn one_vm<F: Format, M: Machine>(
    report: &mut Report<'_, M>,
    idle: &mut Idle,
    (mut random, pattern): (Random, Pattern),
    until: u64,
) {
    let track = random.pick(&[Track::Writes, Track::DirtyBits]);
    let splitting = random.pick(&[Splitting::Eager, Splitting::Lazy]);
    let log = DirtyLog::bitmap().track(track).splitting(splitting);
    let builder = Vm::<F, _>::builder(Backing::new(report.machine.ram(), random.once_in(6)))
        .address_spaces(SPACES)
        .max_page(random.pick(&[Level::G1, Level::G1, Level::G1, Level::M2, Level::K4]))
        .nx_huge_pages(random.once_in(3))
        .dirty_log(if random.once_in(3) { log.initially_set() } else { log })
        .address_bits(report.machine.gpa_bits());
    let Ok(vm) = builder.build() else { return report.differ(format_args!("no memory for a VM")) };
    let Some(vcpu) = vm.vcpu(VcpuId(0)) else { return report.differ(format_args!("no vCPU 0")) };
    let mut modelled = ModelledVm::<F>::new(&vm, vcpu, idle, random, (report, pattern));
    for region in 0..REGIONS {
        if region % 3 == 2 {
            (region * Level::M2.pages()..(region + 1) * Level::M2.pages()).for_each(|page| {
                let frame = modelled.any_frame(Level::K4);
                vm.host().set(page, (page % 7 != 3).then_some((frame, page % 5 != 0)));
            });
        } else {
            let frame = modelled.any_frame(Level::M2);
            vm.host().set_huge(region, frame, region % 4 != 0);
        }
    }
    (0..20).for_each(|_| modelled.create_somewhere(idle, report));
    // Forget the translations of another VM.
    report.machine.flush();
    let mut shadow = Shadow::default();
    let mut faulted = Vec::new();
    while report.verdict.lookups < until {
        let mut plan = Vec::new();
        for LookUp { gpa, access, .. } in faulted.drain(..) {
            let again = !modelled.random.once_in(8) && modelled.is_safe(gpa.gfn());
            if again && modelled.fault(idle, report, (gpa, access)) {
                plan.push(LookUp { gpa, access, must: true });
            }
        }
        modelled.map_fixed(idle, report);
        while (plan.len() as u64) < ROUND {
            plan.extend(modelled.plan(report.machine.gpa_bits()));
        }
        round(&mut modelled, idle, report, (&mut shadow, &plan, &mut faulted));
        for _ in 0..=modelled.random.below(3) {
            modelled.change(idle, report);
        }
    }
}

/// Makes look-ups in the current tables; those that fault go to `faulted`.
fn round<F: Format, M: Machine>(
    modelled: &mut ModelledVm<'_, F>,
    idle: &mut Idle,
    report: &mut Report<'_, M>,
    (shadow, plan, faulted): (&mut Shadow, &[LookUp], &mut Vec<LookUp>),
) {
    let space = modelled.vcpu.space();
    let behind: Vec<Option<Behind>> = plan.iter().map(|lookup| modelled.behind(lookup.gpa.gfn())).collect();
    let guest = modelled.vcpu.enter(idle, &mut Flusher(&mut *report.machine));
    let root = guest.root();
    drop(guest);
    let frozen = modelled.freeze(root, plan).inspect(|_| report.machine.flush());
    let roots: Vec<Pfn> = (0..SPACES)
        .filter_map(|space| modelled.vm.space(slat::SpaceId(space)).map(|space| space.root()))
        .collect();
    // All words, every other time: the look-ups cover only a part of them.
    let whole = modelled.random.once_in(2);
    if whole {
        // SAFETY: the engine is not called before the last use of what is copied here.
        unsafe { shadow.take::<F>(&roots) };
    }
    let mut last = None;
    for (lookup, behind) in plan.iter().zip(behind) {
        report.step = report.verdict.lookups;
        report.verdict.lookups += 1;
        let value = modelled.random.next();
        let held = frozen.as_ref().is_some_and(|frozen| frozen.on_the_way::<F>(root, lookup.gpa));
        let lookup = LookUp { must: lookup.must && !held, ..*lookup };
        let (through, made) =
            look_up::<F, M>(report, shadow, (root, modelled.pattern), lookup, (behind, value));
        last = Some(made);
        if through {
            if lookup.access == Access::Write
                && let Some(slot) = modelled.slot(lookup.gpa.gfn()).filter(|slot| slot.log_dirty)
            {
                modelled.written.insert((space, slot.id, lookup.gpa.gfn().0 - slot.gfns.start.0));
            }
        } else {
            faulted.push(lookup);
        }
    }
    if whole {
        // SAFETY: as above.
        let strays = unsafe { shadow.compare(&modelled.excused(root)) };
        for stray in strays {
            let what = format_args!("a word that no look-up has to do with: {stray:x?}");
            match last {
                Some(last) => report.differs(&Difference { bits: Some(stray), ..last }, what),
                None => report.differ(what),
            }
        }
    }
    if let Some(frozen) = frozen {
        frozen.thaw();
    }
}

/// Makes one look-up with all of its checks. Returns whether it should have succeeded, and did; and the look-up.
fn look_up<F: Format, M: Machine>(
    report: &mut Report<'_, M>,
    shadow: &mut Shadow,
    (root, pattern): (Pfn, Pattern),
    LookUp { gpa, access, must }: LookUp,
    (behind, value): (Option<Behind>, u64),
) -> (bool, Difference) {
    let way = || {
        let inside = gpa.gfn().0 >> F::FRAME_BITS == 0;
        // SAFETY: the root of the tables in use; no call of the engine in this function.
        if inside { unsafe { tables::path::<F>(root, gpa.gfn()) } } else { Vec::new() }
    };
    let path = way();
    let mut expected = expect::answer::<F>(&path, gpa, access);
    // First, the words must agree with the judge's own state.
    let known = behind.filter(|behind| behind.writable || access != Access::Write);
    let address = known.map(|behind| behind.pfn.address() + gpa.offset());
    let through = match expected {
        Answer::Through { value: target } => {
            let mine =
                address.map(|address| if access == Access::Fetch { address & !0xfff } else { address });
            if mine != Some(target) {
                report.differ(format_args!(
                    "the engine: {access:?} at {gpa} would reach {target:#x}, but {behind:x?} is there: {path:x?}"
                ));
                return (false, Difference { gpa, access, expected, answer: expected, bits: None });
            }
            let memory = (leaf_memory::<F>(&path), behind.map(|behind| behind.memory));
            if memory.0 != memory.1 {
                report.differ(format_args!(
                    "the engine: of the types at {gpa} the first is mapped: {memory:?}"
                ));
            }
            true
        }
        Answer::Fault { .. } => false,
    };
    report.verdict.seen.count::<F>(&path, through);
    if must && !through {
        report.differ(format_args!("the engine: {access:?} at {gpa} faults again: {path:x?}"));
    }
    // Second, the walker must agree with the words.
    let mut answer = report.machine.access(root, gpa, access, value);
    let stored = address.filter(|_| access == Access::Write && through).map(|address| {
        let stored = pattern.load(address);
        pattern.store(address, address);
        stored
    });
    if access == Access::Write {
        // For a store, a walker answers with the stored value; memory shows where it went.
        expected = if through { Answer::Through { value } } else { expected };
        if let (Answer::Through { .. }, Some(stored)) = (answer, stored) {
            answer = Answer::Through { value: stored.unwrap_or(0) };
        }
    }
    let difference = Difference { gpa, access, expected, answer, bits: None };
    let right = expect::agree(expected, answer, access);
    if !right {
        report.differs(
            &difference,
            format_args!("{access:?} at {gpa}: expected {expected:x?}, the walker: {answer:x?}; {path:x?}"),
        );
    }
    if right && through && access == Access::Read {
        let told = report.machine.memory_type(root, gpa);
        let expected = leaf_memory::<F>(&path).and_then(M::told_of);
        if told != expected {
            report.differ(format_args!("the type at {gpa}: expected {expected:x?}, the walker: {told:x?}"));
        }
    }
    // Accessed and Dirty must be set where required, and nowhere else.
    for ((before, after), step) in
        path.iter().zip(expect::words_after::<F>(&path, access, through)).zip(way())
    {
        shadow.expect(before, step.word);
        if right && !after.contains(&step.word) {
            let bits = Bits { level: step.level, expected: after[0].0, found: step.word.0 };
            report.differs(
                &Difference { bits: Some(bits), ..difference },
                format_args!("{access:?} at {gpa} left {bits:x?}, from {before:x?}"),
            );
        }
    }
    (right && through, difference)
}

/// Returns the memory type of the leaf at the end of `path`.
fn leaf_memory<F: Format>(path: &[Step]) -> Option<MemoryType> {
    path.last().map(|step| F::read_leaf(step.word).memory)
}

/// An entry that is frozen for a round, as a fault, a split or a recovery freezes one for a moment.
struct Frozen {
    step: Step,
}

impl Frozen {
    fn on_the_way<F: Format>(&self, root: Pfn, gpa: Gpa) -> bool {
        // SAFETY: made and thawed between calls of the engine.
        let path = || unsafe { tables::path::<F>(root, gpa.gfn()) };
        gpa.gfn().0 >> F::FRAME_BITS == 0
            && path().iter().any(|step| (step.table, step.index) == (self.step.table, self.step.index))
    }

    fn thaw(self) {
        // SAFETY: as above; the word is the engine's own.
        unsafe { self.step.entry().store_raw(self.step.word) };
    }
}

impl<F: Format> ModelledVm<'_, F> {
    /// Sometimes freezes an entry on the path of one of these look-ups; never one that the guest itself needs.
    fn freeze(&mut self, root: Pfn, plan: &[LookUp]) -> Option<Frozen> {
        let gfn = self.random.pick(plan).gpa.gfn();
        if self.random.once_in(2) || gfn.0 >> F::FRAME_BITS != 0 {
            return None;
        }
        // SAFETY: between calls of the engine.
        let (path, own) = unsafe { (tables::path::<F>(root, gfn), self.excused(root)) };
        let step = self.random.pick(&path);
        if own.contains_key(&(step.table.0, step.index)) {
            return None;
        }
        // SAFETY: as above; a frozen word links nothing.
        unsafe { step.entry().store_raw(Word::frozen(5)) };
        Some(Frozen { step })
    }

    /// Draws a look-up near a boundary, if the guest may go there whatever the walker does.
    fn plan(&mut self, gpa_bits: u32) -> Option<LookUp> {
        let gfn = self.some_gfn(gpa_bits)?;
        if !self.is_safe(gfn) {
            return None;
        }
        let access =
            self.random.pick(&[Access::Read, Access::Read, Access::Write, Access::Write, Access::Fetch]);
        let offset = match access {
            Access::Fetch => CODE_OFFSET,
            _ => self.random.below(CODE_OFFSET / 8) * 8,
        };
        Some(LookUp { gpa: gfn.gpa() + offset, access, must: false })
    }

    fn some_gfn(&mut self, gpa_bits: u32) -> Option<Gfn> {
        let beyond = gpa_bits > F::FRAME_BITS + PAGE_SHIFT;
        if self.random.once_in(24) {
            let frames = if beyond { self.frames << 1 } else { self.frames };
            return Some(Gfn(self.random.below(frames)));
        }
        let here = self.vcpu.space();
        let index = self.any_slot().filter(|&index| self.slots[index].space == here)?;
        let slot = self.slots[index].slot;
        let inside = self.random.below(slot.gfns.len());
        let gfn = match self.random.below(8) {
            0 => slot.gfns.start,
            1 => Gfn(slot.gfns.end.0 - 1),
            2 => Gfn(slot.gfns.start.0.checked_sub(1)?),
            3 => slot.gfns.end,
            4 => (slot.gfns.start + inside).base(Level::M2),
            5 => Gfn((slot.gfns.start + inside).base(Level::M2).0.checked_sub(1)?),
            _ => slot.gfns.start + inside,
        };
        // Most of a GiB is not the pattern: choose frames of the pattern.
        let gib = self.vm.host().gib_page(self.pattern.frames().start);
        let in_gib = slot.hva == crate::backing::GIB && self.random.below(8) > 1;
        let gfn = if in_gib { slot.gfns.start + gib + inside % self.pattern.frames().len() } else { gfn };
        (gfn.0 < self.frames || beyond && gfn.0 < self.frames << 1).then_some(gfn)
    }
}
