//! The costs of L2: a page that L2 touches first, with L1's tables present, compared with a fault of L1's own; a flush
//! by L1 after which all of 1 GiB stays, and one after which all of it is dropped; a page of L1 that the host takes back;
//! bytes for each 4 KiB.
//!
//! Run it: `cargo run --profile bench -p slat --example nested_cost`. Each row is the median of rounds in which both
//! sides take turns.

use slat::nested::{EptFeatures, EptTable, L1Access, L2, L2Next};
use slat::table::{Word, formats::Ept4};
use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, Next, PAGE_SHIFT, PAGE_SIZE, Pfn, Reason,
    Resume, Slot, SlotId, Span, Translations, VcpuId, Vm,
};
use std::hint::{black_box, spin_loop};
use std::ops::Range;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};
use std::thread;
use std::time::Instant;

/// Pages of L2 that a round touches.
const PAGES: u64 = 512 * 512;
/// The first frame of L1 after its tables, where L2's pages begin.
const DATA: u64 = 1024;
const BASE: Hva = Hva(1 << 40);
const ROUNDS: usize = 9;
/// Pages of L1 that the host takes back one by one.
const TAKEN: u64 = 4096;

/// A host whose frame is the address. L1's tables are words here; the rest of its memory is never read.
struct Flat(Vec<AtomicU64>);

impl Host for Flat {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        self.0.get((hva.0 - BASE.0) as usize / 8).map(|word| Word(word.load(Acquire)))
    }
}

/// L1's EPT: frame 0 is the root, 1 and 2 the next levels, the leaf tables from 3 on.
fn tables() -> Vec<AtomicU64> {
    let mut words = vec![0; DATA as usize * 512];
    (words[0], words[512]) = (1 << 12 | 7, 2 << 12 | 7);
    for table in 0..PAGES / 512 {
        words[(2 * 512 + table) as usize] = (3 + table) << 12 | 7;
    }
    for page in 0..PAGES {
        words[(3 * 512 + page) as usize] = (DATA + page) << 12 | 6 << 3 | 7;
    }
    words.into_iter().map(AtomicU64::new).collect()
}

/// Counts the flushes of L2's tag in a vCPU's TLB.
struct Flushes(u32);

impl Translations for Flushes {
    fn flush_all(&mut self) {
        self.0 += 1;
    }
    fn flush(&mut self, _: Span<Gfn>) {}
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds for each page.
fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_nanos() as f64 / PAGES as f64
}

/// A vCPU's faults of L2 on these pages, on its own thread; all threads begin at once. Returns the times of begin and
/// end.
fn faults(vm: &Vm<Ept4, Flat>, id: u32, ept: EptTable, pages: Range<u64>, left: &AtomicU32) -> [Instant; 2] {
    let mut idle = Idle::take().expect("a thread of its own");
    let mut vcpu = vm.vcpu(VcpuId(id)).expect("it is free");
    let mut l2 = vcpu.nested(&mut idle, ept).expect("there is memory");
    // Awake when the last thread arrives.
    left.fetch_sub(1, SeqCst);
    while left.load(SeqCst) > 0 {
        spin_loop();
    }
    let began = Instant::now();
    touch(&mut l2, &mut idle, pages);
    [began, Instant::now()]
}

/// L2 touches its pages, one after the other, and faults where it finds none: a fault may map neighbours.
fn touch(l2: &mut L2<'_, '_, Ept4, Flat, EptTable>, idle: &mut Idle, pages: Range<u64>) {
    for page in pages {
        let access = L1Access::new(Gfn(page).gpa(), Access::Write);
        if l2.translate(access.gpa).is_none() {
            let done = black_box(l2.fault(idle, access));
            assert!(matches!(done, Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })));
        }
    }
}

/// Nanoseconds for each of these pages of L1, which the host takes back one by one.
fn taken_back(vm: &Vm<Ept4, Flat>, idle: &mut Idle, gfns: Range<u64>) -> f64 {
    let (began, pages) = (Instant::now(), gfns.end - gfns.start);
    for gfn in gfns {
        let page = Span::sized(BASE + (gfn << PAGE_SHIFT), PAGE_SIZE);
        drop(vm.invalidate(page, Reason::Unmap).apply(idle).settle());
    }
    began.elapsed().as_nanos() as f64 / pages as f64
}

/// Nanoseconds for each page, by several vCPUs at once, each with its own part.
fn by_threads(vm: &Vm<Ept4, Flat>, vcpus: u32, ept: EptTable) -> f64 {
    let (left, each) = (&AtomicU32::new(vcpus), PAGES / u64::from(vcpus));
    let part = |id: u32| u64::from(id) * each..u64::from(id + 1) * each;
    let times: Vec<[Instant; 2]> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..vcpus).map(|id| scope.spawn(move || faults(vm, id, ept, part(id), left))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    let (began, ended) = (times.iter().map(|time| time[0]).min(), times.iter().map(|time| time[1]).max());
    (ended.unwrap() - began.unwrap()).as_nanos() as f64 / PAGES as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("a thread of its own")?;
    let vm = Vm::<Ept4, _>::builder(Flat(tables())).vcpus(2).build()?;
    let all = DATA + PAGES + TAKEN;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), all, BASE)))?;
    // L2 has none of these frames. All measurements begin with no nested guest in the VM.
    let apart = DATA + PAGES..all;
    let none_runs = median((0..ROUNDS).map(|_| taken_back(&vm, &mut idle, apart.clone())).collect());
    let (mut not_had, mut had) = (Vec::new(), Vec::new());
    let ept = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).ok_or("a good pointer")?;
    let data = Span::sized(BASE + (DATA << PAGE_SHIFT), PAGES * PAGE_SIZE);
    let (mut own, mut nested, mut keeps, mut flush) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut tlb, mut refaults, mut flushed) = (Flushes(0), 0, 0);
    let mut kicks = 0;
    let mut bytes = Vec::new();
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("it is free")?;
        own.push(timed(|| {
            for page in 0..PAGES {
                let fault = Fault { gpa: Gfn(DATA + page).gpa(), access: Access::Write };
                assert!(black_box(vcpu.fault(&mut idle, fault)).is_ok());
            }
        }));
        let before = vm.stats().table_bytes;
        let mut l2 = vcpu.nested(&mut idle, ept)?;
        nested.push(timed(|| touch(&mut l2, &mut idle, 0..PAGES)));
        bytes.push((vm.stats().table_bytes - before) as f64 / PAGES as f64);
        drop(l2.enter(&mut idle, &mut tlb).poll());
        let (before, shootdowns) = (tlb.0, vm.stats().flushes.paid);
        vcpu.l1_flushes(|table: &EptTable| *table == ept);
        keeps.push(timed(|| drop(black_box(vcpu.nested(&mut idle, ept)))));
        let mut l2 = vcpu.nested(&mut idle, ept)?;
        drop(l2.enter(&mut idle, &mut tlb).poll());
        refaults += (0..PAGES).filter(|&page| l2.translate(Gfn(page).gpa()).is_none()).count();
        flushed += tlb.0 - before;
        kicks += vm.stats().flushes.paid - shootdowns;
        // L1 withdraws write permission from all of it.
        let leaves = || vm.host().0[3 * 512..][..PAGES as usize].iter();
        leaves().for_each(|word| word.store(word.load(Relaxed) & !2, Relaxed));
        vcpu.l1_flushes(|table: &EptTable| *table == ept);
        flush.push(timed(|| drop(black_box(vcpu.nested(&mut idle, ept)))));
        leaves().for_each(|word| word.store(word.load(Relaxed) | 2, Relaxed));
        let mut l2 = vcpu.nested(&mut idle, ept)?;
        not_had.push(taken_back(&vm, &mut idle, apart.clone()));
        touch(&mut l2, &mut idle, 0..TAKEN);
        had.push(taken_back(&vm, &mut idle, DATA..DATA + TAKEN));
        // Both sides begin with linked tables and without mappings.
        drop(vcpu);
        for (threads, times) in [(1, &mut one), (2, &mut two)] {
            drop(vm.invalidate(data, Reason::Clear).apply(&mut idle).settle());
            times.push(by_threads(&vm, threads, ept));
        }
        drop(vm.invalidate(data, Reason::Clear).apply(&mut idle).settle());
    }
    let first = bytes[0];
    let (own, nested, keeps, flush) = (median(own), median(nested), median(keeps), median(flush));
    let (one, two) = (median(one), median(two));
    println!("fault of L1's own         {own:8.1} ns");
    println!("first touch by L2         {nested:8.1} ns   {:.1} of those", nested / own);
    println!("  by one thread           {one:8.1} ns");
    println!("  by two at once          {two:8.1} ns   {:.2} times as fast", one / two);
    println!("flush by L1 of 1 GiB that keeps all  {:8.3} ms", keeps * PAGES as f64 / 1e6);
    println!("  {refaults} refaults, {flushed} flushes of the vCPU's TLB, {kicks} shootdowns");
    println!("flush by L1 that empties  {flush:8.2} ns a page, {:.2} ms a GiB", flush * 262_144.0 / 1e6);
    println!("a page taken back by the host, no nested guest {none_runs:6.1} ns");
    println!("  with one, which does not have the page       {:6.1} ns", median(not_had));
    println!("  which has the page                           {:6.1} ns", median(had));
    println!("tables and reverse map    {first:8.1} bytes for each 4 KiB of L2");
    Ok(())
}
