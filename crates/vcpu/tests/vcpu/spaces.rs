//! A vCPU that switches to another address space sees that space's memory at once, whatever its caches hold.

use slat::table::formats::Ept4;
use slat::*;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::ptr::NonNull;

const PAGES: usize = 8;

/// A host of a few frames. A host address is the frame's.
struct FewFrames;

impl Host for FewFrames {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

/// Loads the first byte of each page, and stops.
#[derive(Default)]
struct Look(Vec<u8>);

impl Program for Look {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let mut byte = [0];
        core.load(Gfn(self.0.len() as u64).gpa(), &mut byte)?;
        self.0.push(byte[0]);
        Ok(if self.0.len() == PAGES / 2 { Step::Stop } else { Step::Next })
    }
}

#[test]
fn the_memory_of_the_other_space_is_seen_at_once() {
    let mut memory: Vec<u64> = vec![0; PAGES << (PAGE_SHIFT - 3)];
    for (page, words) in memory.chunks_mut(1 << (PAGE_SHIFT - 3)).enumerate() {
        words[0] = page as u64;
    }
    // SAFETY: the vector outlives the vCPU, and nothing else touches it meanwhile.
    let window = unsafe { Window::new(NonNull::from(&mut memory[..]).cast(), PAGES as u64) };
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, _>::builder(FewFrames).address_spaces(2).build().unwrap();
    for (space, first) in [(0, 0), (1, PAGES as u64 / 2)] {
        let slot = Slot::new(SlotId(0), Gfn(0), PAGES as u64 / 2, Hva(first << PAGE_SHIFT));
        vm.space(SpaceId(space)).unwrap().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    }
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), window);
    for (space, bytes) in [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])] {
        assert!(cpu.switch_to(SpaceId(space)));
        let mut look = Look::default();
        assert_eq!(cpu.run(&mut idle, &mut look), Exit::Stopped);
        assert_eq!(look.0, bytes, "in space {space}");
    }
    assert!(!cpu.switch_to(SpaceId(2)));
    assert_eq!(vm.stats().mapped_faults, PAGES as u64, "each page was mapped once, in one address space");
}
