//! A page-table format of your own hardware: constants and three functions, in your crate.
//! Run it: `cargo run -p slat --example custom_format`.

use slat::table::Word;
use slat::{
    Access, Fault, Format, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, Leaf, Level, MemoryType, Next,
    Perms, Pfn, Resume, Slot, SlotId, VcpuId, Vm,
};

/// REPLACE: your processor's bits. Here a leaf has bit 63, and a link has not; the frame number begins at bit 8.
#[derive(Clone, Copy, Default, Debug)]
struct Mine;

const LEAF: u64 = 1 << 63;
const EXECUTE: u64 = 1 << 3;
const FRAME: u32 = 8;

fn when(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}

// SAFETY: one bit distinguishes links and leaves, and frames have bits of their own. REPLACE: a test for each level, as
// in slat's `table/formats/tests.rs`.
unsafe impl Format for Mine {
    const NAME: &'static str = "mine";
    const LEVELS: u8 = 3; // 39 bits of guest address
    const MAX_LEAF: Level = Level::M2;
    const TABLE_MASK: u64 = LEAF | Self::PRESENT;
    const TABLE_BITS: u64 = Self::PRESENT;
    const PRESENT: u64 = 1 << 0;
    const ADDRESS: u64 = ((1 << 40) - 1) << FRAME;
    const WRITE: u64 = 1 << 1;
    const HOST_WRITE: u64 = 1 << 4; // ignored by the hardware
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;

    fn link(pfn: Pfn, _: Level) -> Word {
        Word(pfn.0 << FRAME | Self::PRESENT)
    }
    fn leaf(leaf: &Leaf, _: Level) -> Word {
        let allows = |access, bit| when(leaf.perms.allows(access), bit);
        let perms = allows(Access::Write, Self::WRITE) | allows(Access::Fetch, EXECUTE);
        let used = when(leaf.accessed, Self::ACCESSED) | when(leaf.dirty, Self::DIRTY);
        let host = when(leaf.host_writable, Self::HOST_WRITE);
        Word(leaf.pfn.0 << FRAME | LEAF | Self::PRESENT | perms | used | host)
    }
    fn read_leaf(word: Word) -> Leaf {
        let has = |bit| word.0 & bit != 0;
        let perms = Perms::of(true, has(Self::WRITE), has(EXECUTE));
        let (pfn, memory, host_writable) = (Self::pfn(word), MemoryType::WriteBack, has(Self::HOST_WRITE));
        let (accessed, dirty) = (has(Self::ACCESSED), has(Self::DIRTY));
        Leaf { pfn, perms, memory, host_writable, accessed, dirty }
    }

    fn pfn(word: Word) -> Pfn {
        Pfn((word.0 & Self::ADDRESS) >> FRAME)
    }
}

/// The host maps everything: frame = address, in pages of 2 MiB.
struct Identity;
impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> 12), level: Level::M2, ..HostPage::PLAIN })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Mine, _>::builder(Identity).build()?; // constants that contradict each other do not compile
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, Hva(1 << 30))))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    let done = vcpu.fault(&mut idle, Fault { gpa: Gpa(0x20_5000), access: Access::Write })?;
    assert_eq!(done, Next::Resume(Resume::Mapped(Level::M2)));
    println!("{done:?}: {:x?}", vm.memory().translate(&mut idle, Gfn(0x205)));
    Ok(())
}
