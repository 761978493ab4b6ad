//! A vCPU: a guest that loads and stores, and the hardware's walker, which takes no lock, enters no read section, and
//! sets Accessed and Dirty.
//!
//! A kicked vCPU may continue before it answers: for as long as its plan says, and it may access memory meanwhile.

use super::World;
use super::primary_mmu::Handle;
use super::tlb::{self, Translation};
use crate::plan::Cpu;
use crate::plan::op::Op;
use slat::table::{Entry, Word};
use slat::{
    Access, Emulate, Fault, FaultError, Format, Gfn, Idle, InGuest, Leave, Next, Prefault, Resume, Span,
    Vcpu, VcpuId,
};
use slat_machine::{compute, guest as run_guest, now, pause, rest};

/// Faults on one access after which the guest gives up. A host may refuse a page forever.
const TRIES: u32 = 50;

/// Runs vCPU `id` through its program.
pub fn run<F: Format>(world: &World<F>, id: u32, cpu: &Cpu) {
    let mut idle = Idle::take().expect("one on each CPU");
    let vcpu = world.vm.vcpu(VcpuId(id)).expect("one CPU for each");
    let mut guest = Guest { world, id: id as usize, vcpu, cpu, tries: 0, begun: None };
    let mut left = &cpu.ops[..];
    while !left.is_empty() {
        left = guest.stay(&mut idle, left);
        if let Some(((_, op), rest)) = left.split_first()
            && guest.outside(&mut idle, op)
        {
            (left, guest.tries, guest.begun) = (rest, 0, None);
        }
    }
}

struct Guest<'w, F: Format> {
    world: &'w World<'w, F>,
    id: usize,
    vcpu: Vcpu<'w, F, Handle>,
    cpu: &'w Cpu,
    /// Faults on the current access, and the step at which it began.
    tries: u32,
    begun: Option<u64>,
}

impl<F: Format> Guest<'_, F> {
    /// One stay in the guest. It ends with a fault, or with an operation outside. Returns the rest of the operation.
    fn stay<'p>(&mut self, idle: &mut Idle, mut left: &'p [(u32, Op)]) -> &'p [(u32, Op)] {
        if !matches!(left, [(_, Op::Touch(..) | Op::Compute(_) | Op::Linger(_)), ..]) {
            return left;
        }
        let (world, id) = (self.world, self.id);
        let tlb = &world.tlbs[id];
        let mut inside = self.vcpu.enter(idle, &mut tlb::Handle(tlb)).poll();
        world.story(|| "enters the guest".into());
        tlb.borrow_mut().root = Some(inside.root());
        world.check();
        let mut late = self.cpu.late;
        while let Some(((_, op), rest)) = left.split_first() {
            if inside.kicked() {
                if late == 0 {
                    answer(world, id, &mut inside);
                    late = self.cpu.late;
                } else {
                    late -= 1;
                    compute(self.cpu.late_ns);
                }
            }
            match op {
                Op::Touch(gfn, access) => {
                    self.begun.get_or_insert_with(|| world.steps());
                    let found = tlb.borrow().find(*gfn, *access);
                    let found = found.or_else(|| walk(world, id, inside.root(), (*gfn, *access)));
                    let Some(found) = found else { break };
                    // From here the host waits until this use is over before it takes the page away.
                    pause();
                    world.used((*gfn, *access), found.frame(*gfn));
                    (self.tries, self.begun) = (0, None);
                }
                Op::Linger(ns) => compute(*ns),
                Op::Compute(ns) => {
                    let mut ns = *ns;
                    while ns > 0 {
                        ns = run_guest(ns, || inside.kicked());
                        if inside.kicked() {
                            answer(world, id, &mut inside);
                        }
                    }
                }
                _ => break,
            }
            left = rest;
        }
        tlb.borrow_mut().root = None;
        world.story(|| "leaves the guest".into());
        left
    }

    /// An operation outside of the guest, usually a fault. Returns whether it is complete.
    fn outside(&mut self, idle: &mut Idle, op: &Op) -> bool {
        let world = self.world;
        match op {
            Op::Touch(gfn, access) => {
                let begun = self.begun.unwrap_or_else(|| world.steps());
                world.story(|| format!("faults: {access:?} at {:#x}", gfn.0));
                let done = self.vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: *access });
                world.story(|| format!("  is answered {done:?}"));
                self.tries += 1;
                match done {
                    Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => {
                        world.emulated(*gfn, begun);
                        return true;
                    }
                    // The VMM performs the store.
                    Ok(Next::Emulate(Emulate::Tracked)) => return true,
                    Ok(Next::Leave(Leave::RingFull) | Next::Resume(Resume::Spurious))
                    | Err(FaultError::Host(_)) => pause(),
                    // The harvest clock has gone round twice.
                    Err(_) => self.tries += TRIES / 5,
                    Ok(_) => {}
                }
                return self.tries >= TRIES;
            }
            Op::Prefault(gfns) => {
                // An error means that nothing was mapped. The guest's own access reports the reason.
                let mapped = self.vcpu.prefault(idle, *gfns, Prefault::OLD);
                world.story(|| format!("prefaults {:#x}: {mapped:?}", gfns.start.0));
            }
            Op::Rest(ns) => rest(*ns),
            Op::Align(ns) => rest(ns - now() % ns),
            _ => {}
        }
        true
    }
}

fn answer<F: Format>(world: &World<F>, id: usize, inside: &mut InGuest<'_>) {
    let tlb = &world.tlbs[id];
    // The vCPU makes no access until it has answered and loaded its root.
    tlb.borrow_mut().root = None;
    inside.answer(&mut tlb::Handle(tlb));
    world.story(|| "answers".into());
    tlb.borrow_mut().root = Some(inside.root());
    world.check();
}

/// Walks for `gfn` from `root`, or from the lowest cached link.
fn walk<F: Format>(
    world: &World<F>,
    id: usize,
    root: slat::Pfn,
    (gfn, access): (Gfn, Access),
) -> Option<Translation> {
    let tlb = &world.tlbs[id];
    'again: loop {
        let (mut level, mut table) = tlb.borrow().begin::<F>(gfn, root);
        loop {
            let page = world.host.memory.at(table).cast::<Entry>();
            // SAFETY: a table page consists of words that are atomics.
            let entry = unsafe { page.add(F::index(gfn, level)).as_ref() };
            let word = entry.load();
            if !F::is_present(word) {
                return None;
            }
            if F::is_table(word, level) {
                if !touched(entry, word, F::touch_link(level)) {
                    continue 'again;
                }
                (level, table) = (level.down(), F::pfn(word));
                let served = Span::sized(gfn.base(level.up()), level.up().pages());
                tlb.borrow_mut().links.push((served, level, table));
                continue;
            }
            let leaf = F::read_leaf(word);
            if !leaf.perms.allows(access) {
                return None;
            }
            if !touched(entry, word, F::touch(access)) {
                continue 'again;
            }
            let gfns = Span::sized(gfn.base(level), level.pages());
            let dirty = !F::HARDWARE_AD || leaf.dirty || access == Access::Write;
            let found = Translation { gfns, pfn: leaf.pfn, perms: leaf.perms, dirty };
            tlb.borrow_mut().remember(found);
            world.story(|| format!("walks to {:#x} for {access:?} at {:#x}", found.frame(gfn).0, gfn.0));
            world.check();
            return Some(found);
        }
    }
}

/// Sets those of `bits` that are clear. Returns false if the entry has changed.
fn touched(entry: &Entry, seen: Word, bits: u64) -> bool {
    // SAFETY: a hardware walker sets these bits in this word.
    seen.0 & bits == bits || unsafe { entry.touch_raw(seen, bits) }
}
