//! The claim of the engine, step by step and without a race. The host moves a page that a vCPU has cached, and
//! the vCPU then reads the new frame. The negative control omits the flush: the vCPU's TLB keeps the old frame,
//! which is poisoned by then. The oracle reports this every time.

use slat::table::formats::{Ept4, Npt4};
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::oracle::{Oracle, Verdict};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;

const HVA: Hva = Hva(1 << 40);
const AT: Gpa = Gpa(0x3_0008);

/// Writes a word once. Reads it each time that it runs.
struct Reader {
    oracle: Oracle,
    written: bool,
    verdict: Option<Verdict>,
}

impl Program for Reader {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if !self.written {
            core.store(AT, b"precious")?;
            self.oracle.wrote(AT, b"precious");
            self.written = true;
        }
        let mut bytes = [0; 8];
        core.load(AT, &mut bytes)?;
        self.verdict = Some(self.oracle.check(AT, &bytes));
        Ok(Step::Stop)
    }
}

/// Returns the words that the guest reads before and after `change`.
fn around<F: Format>(
    sabotage: bool,
    thp: bool,
    change: impl Fn(&AddressSpace, &mut Idle),
) -> (Verdict, Verdict) {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let space = AddressSpace::builder(&arena).thp(thp).build().unwrap();
    space.mmap(Place::Fixed(HVA), 4 << 20, Prot::ReadWrite, Backing::Anonymous).unwrap();
    // A host that says that a flush was broadcast, and does none.
    let host = HostView::new(&space).with_broadcast(move |_| sabotage);
    let vm = Arc::new(Vm::<F, _>::builder(host).vcpus(1).build().unwrap());
    space.register(&vm);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, HVA))).unwrap();

    // Frame numbers start after a huge page that is never used. SAFETY: the arena's mapping, which outlives the
    // vCPU.
    let window = unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) };
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), window);
    let mut program = Reader { oracle: Oracle::new(16), written: false, verdict: None };
    assert_eq!(cpu.run(&mut idle, &mut program), Exit::Stopped);
    let before = program.verdict.unwrap();
    change(&space, &mut idle);
    assert_eq!(cpu.run(&mut idle, &mut program), Exit::Stopped);
    (before, program.verdict.unwrap())
}

fn migrate(space: &AddressSpace, idle: &mut Idle) {
    assert!(space.migrate(idle, Span::sized(HVA, 4 << 20)).unwrap() > 0, "no page moved");
}

/// Forks a snapshot and writes to both sides. The guest must neither see the snapshot's write nor keep the
/// shared frame.
fn share_and_break(space: &AddressSpace, idle: &mut Idle) {
    let snapshot = space.fork(idle).unwrap();
    space.write(idle, HVA + AT.0, b"precious").unwrap();
    snapshot.write(idle, HVA + AT.0, b"tampered").unwrap();
}

#[test]
fn a_moved_page_is_read_where_it_is() {
    for thp in [false, true] {
        assert_eq!(around::<Ept4>(false, thp, migrate), (Verdict::Match, Verdict::Match));
        assert_eq!(around::<Npt4>(false, thp, migrate), (Verdict::Match, Verdict::Match));
    }
}

#[test]
fn a_guest_reads_its_own_page_after_its_share_is_broken() {
    for thp in [false, true] {
        assert_eq!(around::<Npt4>(false, thp, share_and_break), (Verdict::Match, Verdict::Match));
    }
}

#[test]
fn negative_control_without_the_flush_the_oracle_reports_corruption() {
    for thp in [false, true] {
        for _ in 0..20 {
            let (before, after) = around::<Ept4>(true, thp, migrate);
            assert_eq!(before, Verdict::Match);
            assert_eq!(
                after,
                Verdict::Corrupt { gpa: AT, expected: b'p', found: 0xdd },
                "the poison of a freed frame"
            );
        }
    }
}

#[test]
fn negative_control_without_the_flush_a_broken_share_is_seen() {
    let (_, after) = around::<Npt4>(true, false, share_and_break);
    let poison = Verdict::Corrupt { gpa: AT, expected: b'p', found: 0xdd };
    assert_eq!(after, poison, "the frame that was freed with the snapshot");
}
