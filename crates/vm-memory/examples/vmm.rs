//! The memory of a small VMM. It loads a kernel, a virtio device serves its ring while memory is plugged and
//! unplugged, and written pages are copied by the dirty log. Loader and queue are rust-vmm's, from crates.io.
//!
//! `cargo run -p slat-vm-memory --example vmm`

use linux_loader::loader::{Elf, KernelLoader};
use slat_vm_memory::{Region, SlotId, SlotMemory};
use std::error::Error;
use std::io::{Cursor, Read, Write};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use virtio_bindings::bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::{Queue, QueueT, Reader, Writer};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, MmapRegion};

const RAM: usize = 4 << 20;
const KERNEL: u64 = 0x10_0000;
/// Address at which a DIMM is plugged.
const HOT: GuestAddress = GuestAddress(1 << 32);
const REQUESTS: u16 = 2000;

type Machine = SlotMemory<Region<MmapRegion<()>>>;

fn dimm(id: u32, at: GuestAddress, len: usize) -> Result<Region<MmapRegion<()>>, Box<dyn Error>> {
    Ok(Region::new(SlotId(id), at, MmapRegion::new(len)?)?)
}

/// An ELF file with one segment, loaded at `KERNEL`.
fn kernel(code: &[u8]) -> Vec<u8> {
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
    elf.extend([KERNEL, 64, 0].iter().flat_map(|word| word.to_le_bytes())); // entry, program headers, sections
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 7, 0, 0, 0]); // a segment to load
    let len = code.len() as u64;
    elf.extend([120, KERNEL, KERNEL, len, len, 4096].iter().flat_map(|word: &u64| word.to_le_bytes()));
    elf.extend(code);
    elf
}

/// The device inverts each request. It takes a snapshot per request, so it sees memory being plugged and
/// unplugged.
fn serve(machine: &Machine, mut queue: Queue) -> Result<(), virtio_queue::Error> {
    let mut served = 0;
    while served < REQUESTS {
        let memory = machine.memory();
        let Some(chain) = queue.pop_descriptor_chain(&*memory) else {
            thread::yield_now();
            continue;
        };
        let (head, mut bytes) = (chain.head_index(), [0; 64]);
        let mut reader: Reader<_> = chain.clone().reader(&*memory)?;
        reader.read_exact(&mut bytes).expect("a request of 64 bytes");
        let mut writer: Writer<_> = chain.writer(&*memory)?;
        writer.write_all(&bytes.map(|byte| !byte)).expect("room for the answer");
        queue.add_used(&*memory, head, 64)?;
        served += 1;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine = Machine::default();
    machine.commit(|tx| tx.insert(dimm(0, GuestAddress(0), RAM).expect("host memory")))?;
    let memory = machine.memory();

    let code = [0xf4; 10_000];
    let loaded = Elf::load(memory.raw(), None, &mut Cursor::new(kernel(&code)), None)?;
    println!("kernel at {KERNEL:#x}..{:#x}", loaded.kernel_end);

    // A virtio queue in guest memory with chain 0: 64 bytes to the device, 64 bytes from it. Each slot of the
    // ring names it.
    let part = |at, flags: u32, next| RawDescriptor::from(Descriptor::new(at, 64, flags as u16, next));
    memory.write_obj(part(0x20_0000, VRING_DESC_F_NEXT, 1), GuestAddress(0x1000))?;
    memory.write_obj(part(0x20_1000, VRING_DESC_F_WRITE, 0), GuestAddress(0x1010))?;
    let (avail, used) = (GuestAddress(0x2002), GuestAddress(0x3002));
    let mut queue = Queue::new(16)?;
    queue.set_desc_table_address(Some(0x1000), None);
    queue.set_avail_ring_address(Some(0x2000), None);
    queue.set_used_ring_address(Some(0x3000), None);
    queue.set_ready(true);
    thread::scope(|scope| {
        let device = scope.spawn(|| serve(&machine, queue));
        for n in 1..=REQUESTS {
            memory.write_slice(&[n as u8; 64], GuestAddress(0x20_0000))?;
            memory.store(n, avail, Release)?; // one more
            machine.commit(|tx| tx.insert(dimm(1, HOT, RAM).expect("host memory")))?;
            machine.memory().write_obj(n, HOT)?;
            while memory.load::<u16>(used, Acquire)? != n {
                assert!(n == REQUESTS || !device.is_finished(), "the device gave up");
                thread::yield_now();
            }
            machine.commit(|tx| tx.remove(SlotId(1)))?;
            assert_eq!(memory.read_obj::<u8>(GuestAddress(0x20_1000))?, !(n as u8));
        }
        device.join().expect("the device goes on").map_err(Box::<dyn Error>::from)
    })?;
    println!(
        "{REQUESTS} requests served while a DIMM came and went; {} memslot is left",
        machine.memory().raw().slots().len()
    );

    // Pre-copy: copy the pages in the log. All pages here were written since the log began.
    let (target, mut pages, mut page) = (dimm(0, GuestAddress(0), RAM)?, 0, [0; 4096]);
    memory.raw().harvest(|gfn| {
        let at = gfn.0 * 4096;
        memory.read_slice(&mut page, GuestAddress(at)).expect("mapped");
        target.write_slice(&page, vm_memory::MemoryRegionAddress(at)).expect("as large");
        pages += 1;
    });
    let (mut ours, mut theirs) = (vec![0; RAM], vec![0; RAM]);
    memory.read_slice(&mut ours, GuestAddress(0))?;
    target.read_slice(&mut theirs, vm_memory::MemoryRegionAddress(0))?;
    assert!(ours == theirs, "every byte");
    println!("{pages} dirty pages copied: the target is equal");
    Ok(())
}
