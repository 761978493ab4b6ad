//! Measures the cost of slat's memory against vm-memory's own: the same accesses, in one run, interleaved. Each figure
//! is a median with the least and the greatest sample. The exit status is 1 where the ratio of the medians exceeds its
//! bar.

use real::bitmap::AtomicBitmap;
use real::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, MmapRegion};
use slat_vm_memory::{Checked, Memory, Region, SlotId};
use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;
use virtio_bindings::bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueOwnedT, QueueT, Reader, Writer};

const LEN: usize = 16 << 20;
const STARTS: [u64; 2] = [0, 1 << 32];
/// The part of a region that is used: small enough to be cached, so that the path to memory counts, not the memory.
const HOT: u64 = 128 << 10;
const ROUNDS: usize = 301;

/// The addresses that are used, alternating between both regions. They are few, so that a sample is seldom interrupted.
fn addresses() -> impl Iterator<Item = GuestAddress> {
    (0..10_000u64).map(|n| GuestAddress(STARTS[(n % 2) as usize] + n * 7919 * 8 % HOT))
}

fn reads(memory: &impl GuestMemory) -> usize {
    addresses().inspect(|at| _ = black_box(memory.read_obj::<u64>(*at).unwrap())).count()
}

fn writes(memory: &impl GuestMemory) -> usize {
    addresses().inspect(|at| memory.write_obj(at.0, *at).unwrap()).count()
}

/// A request of 64 bytes, an answer of 64 bytes.
fn round_trips<M: GuestMemory>(memory: &M) -> usize {
    const TRIPS: usize = 1_000;
    let rings = MockSplitQueue::new(memory, 16);
    let descriptor = |at, flags: u32, next| RawDescriptor::from(Descriptor::new(at, 64, flags as u16, next));
    let chain = [descriptor(0x10_0000, VRING_DESC_F_NEXT, 1), descriptor(0x10_1000, VRING_DESC_F_WRITE, 0)];
    rings.build_desc_chain(&chain).unwrap();
    let mut queue: Queue = rings.create_queue().unwrap();
    for _ in 0..TRIPS {
        queue.set_next_avail(0);
        let chain = queue.iter(memory).unwrap().next().unwrap();
        let mut bytes = [0; 64];
        let head = chain.head_index();
        let mut reader: Reader<_> = chain.clone().reader(memory).unwrap();
        reader.read_exact(&mut bytes).unwrap();
        let mut writer: Writer<_> = chain.writer(memory).unwrap();
        writer.write_all(black_box(&bytes)).unwrap();
        queue.add_used(memory, head, 64).unwrap();
    }
    TRIPS
}

/// Nanoseconds for each operation; `run` returns their number.
fn time(run: impl FnOnce() -> usize) -> f64 {
    let start = Instant::now();
    let count = run();
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Median, least, greatest.
fn spread(samples: &mut [f64]) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [samples[samples.len() / 2], samples[0], samples[samples.len() - 1]]
}

/// Measures both in turns. Returns whether the ratio of their medians is within its bar.
fn compare(what: &str, bar: f64, mut theirs: impl FnMut() -> usize, mut ours: impl FnMut() -> usize) -> bool {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            a.push(time(&mut theirs));
            b.push(time(&mut ours));
        } else {
            b.push(time(&mut ours));
            a.push(time(&mut theirs));
        }
    }
    let ([a, a_least, a_most], [b, b_least, b_most]) = (spread(&mut a), spread(&mut b));
    let ratio = b / a;
    let verdict = if ratio <= bar { "" } else { ", ABOVE" };
    println!(
        "{what:32} GuestMemoryMmap {a:6.1} ns ({a_least:.1}-{a_most:.1})  slat {b:6.1} ns ({b_least:.1}-{b_most:.1})  {ratio:.2} (bar {bar}{verdict})"
    );
    ratio <= bar
}

fn main() {
    let theirs =
        GuestMemoryMmap::<AtomicBitmap>::from_ranges(&STARTS.map(|at| (GuestAddress(at), LEN))).unwrap();
    let region = |id: usize| {
        let ram = MmapRegion::<()>::new(LEN).unwrap();
        Arc::new(Region::new(SlotId(id as u32), GuestAddress(STARTS[id]), ram).unwrap())
    };
    let raw: Memory<Region<_>> = Memory::new([region(0), region(1)]).unwrap();
    let checked = Checked::new(raw.clone());
    for memory in [writes(&theirs), writes(&raw)] {
        black_box(memory); // every page is there
    }
    let kept = [
        compare("read_obj u64", 1.5, || reads(&theirs), || reads(&checked)),
        compare("write_obj u64, logged", 1.5, || writes(&theirs), || writes(&checked)),
        compare("read_obj u64, raw", 1.5, || reads(&theirs), || reads(&raw)),
        compare("write_obj u64, logged, raw", 1.5, || writes(&theirs), || writes(&raw)),
        compare("virtio queue round trip", 1.1, || round_trips(&theirs), || round_trips(&checked)),
    ];
    std::process::exit(i32::from(kept.contains(&false)));
}
