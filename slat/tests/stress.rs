//! Faults and changes at once, on every policy: what a vCPU was told stays true until the host says otherwise;
//! nothing leaks. Pages move and lose write permission one by one; whole tables are unhooked; the memslot goes and
//! comes back. The negative control runs the same with the flush pretended.

use slat::table::formats::{Ept4, Npt4};
use slat::table::memory::TableMemory;
use slat::*;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

const PAGES: u64 = 1024;
const HVA: Hva = Hva(0x7f00_0000_0000);

/// A host that moves pages: frame = page + PAGES × generation of that page; a frame that was given up is dead.
struct Moving {
    generation: Vec<AtomicU64>,
    writable: Vec<AtomicBool>,
    /// One page is changed by one thread at a time.
    change: Vec<Mutex<()>>,
    /// Whether the memslot is there: false only after its deletion is over.
    slot: AtomicBool,
}

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Moving {}

impl Moving {
    fn new() -> Self {
        let many = 0..PAGES;
        Self {
            generation: many.clone().map(|_| AtomicU64::new(0)).collect(),
            writable: many.clone().map(|_| AtomicBool::new(true)).collect(),
            change: many.map(|_| Mutex::new(())).collect(),
            slot: AtomicBool::new(true),
        }
    }

    fn page(&self, hva: Hva) -> HostPage {
        let page = (hva.0 - HVA.0) >> 12;
        HostPage {
            pfn: Pfn(page + PAGES * self.generation[page as usize].load(Acquire)),
            level: Level::K4,
            writable: self.writable[page as usize].load(Acquire),
        }
    }
}

impl Moving {
    /// Changes pages as a primary MMU does: tell, wait, change, end.
    fn change<F: Format>(&self, idle: &mut Idle, vm: &Vm<F, Self>, pages: Range<u64>, why: Why) {
        let pages = pages.start as usize..pages.end as usize;
        let _locks: Vec<_> = self.change[pages.clone()].iter().map(|lock| lock.lock().unwrap()).collect();
        let hvas = Span::sized(HVA + pages.start as u64 * 4096, pages.len() as u64 * 4096);
        let mut change = vm.invalidate(hvas, why);
        change.apply(idle).settle();
        for page in pages {
            if why == Why::Protect {
                self.writable[page].store(false, Release);
            } else {
                self.generation[page].fetch_add(1, Release);
            }
        }
    }
}

impl Host for Moving {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(self.page(hva))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let page = ((hva.0 - HVA.0) >> 12) as usize;
        let _change = self.change[page].lock().unwrap();
        if access == Access::Write {
            self.writable[page].store(true, Release);
        }
        Ok(self.page(hva))
    }
}

/// A one-entry-per-page software TLB: what the vCPU believes until it is told to forget.
struct Believed(Vec<Option<(Pfn, bool)>>);

impl Translations for Believed {
    fn flush_all(&mut self) {
        self.0.fill(None);
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0[gfns.start.0.min(PAGES) as usize..gfns.end.0.min(PAGES) as usize].fill(None);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Each vCPU deals with `faults` faults while the host changes pages without a pause. Returns how often a vCPU
/// used a translation that the host had taken back; stops at the first where that is what is looked for.
fn run<F: Format>(lock: MmuLock, sabotage: bool, faults: u64) -> u64 {
    let builder = Vm::<F, Moving>::builder(Moving::new()).vcpus(2).mmu_lock(lock);
    let vm = if sabotage { builder.sabotage_flushes() } else { builder }.build().unwrap();
    let mut idle = Idle::take().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), PAGES, HVA);
    vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    drop(idle);
    let (stale, running) = (AtomicU64::new(0), AtomicU64::new(2));

    std::thread::scope(|scope| {
        for id in 0..2 {
            let (vm, stale, running) = (&vm, &stale, &running);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                let mut tlb = Believed(vec![None; PAGES as usize]);
                let mut seed = 0x9e37_79b9 + u64::from(id);
                let mut left = faults;
                while left > 0 && !(sabotage && stale.load(Relaxed) > 0) {
                    let mut fault = None;
                    let mut guest = vcpu.enter(&mut idle, &mut tlb);
                    for _ in 0..200 {
                        if guest.kicked() {
                            guest.answer(&mut tlb);
                        }
                        let (gfn, write) = (random(&mut seed) % PAGES, random(&mut seed).is_multiple_of(2));
                        let access = if write { Access::Write } else { Access::Read };
                        match tlb.0[gfn as usize] {
                            Some((pfn, writable)) if writable || !write => {
                                // Between answers, what the TLB says must be what the host says.
                                let now = vm.host().page(HVA + gfn * 4096);
                                let slot = vm.host().slot.load(Acquire);
                                if now.pfn != pfn || (write && !now.writable) || !slot {
                                    stale.fetch_add(1, Relaxed);
                                }
                            }
                            _ => {
                                fault = Some(Fault { gpa: Gfn(gfn).gpa(), access });
                                break;
                            }
                        }
                    }
                    drop(guest);
                    let Some(fault) = fault else { continue };
                    if vcpu.fault(&mut idle, fault) == Ok(Done::Mmio) {
                        std::thread::yield_now(); // the slot is away for a moment
                        continue;
                    }
                    left -= 1;
                    // The walk, inside guest mode, as hardware does it.
                    let gfn = fault.gpa.gfn();
                    let guest = vcpu.enter(&mut idle, &mut tlb);
                    tlb.0[gfn.0 as usize] = walked(vm, guest.root(), gfn)
                        .map(|leaf| (leaf.pfn, leaf.perms.allows(Access::Write)));
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        let mut idle = Idle::take().unwrap();
        let mut seed = 42;
        while running.load(Relaxed) > 0 {
            match random(&mut seed) % 68 {
                0 => {
                    vm.slots().commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
                    vm.host().slot.store(false, Release);
                    std::thread::yield_now();
                    vm.host().slot.store(true, Release);
                    vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
                }
                1..4 => {
                    let table = random(&mut seed) % (PAGES / 512) * 512;
                    vm.host().change(&mut idle, &vm, table..table + 512, Why::Unmap);
                }
                64.. => vm.zap_all(&mut idle).unwrap(),
                n => {
                    let page = random(&mut seed) % PAGES;
                    let why = if n % 2 == 0 { Why::Migrate } else { Why::Protect };
                    vm.host().change(&mut idle, &vm, page..page + 1, why);
                }
            }
        }
    });

    let mut idle = Idle::take().unwrap();
    if !sabotage {
        for gfn in 0..PAGES {
            if let Some(mapping) = vm.translate(&mut idle, Gfn(gfn)) {
                let page = vm.host().page(HVA + gfn * 4096);
                assert_eq!(mapping.leaf.pfn, page.pfn, "the table holds what the host holds");
                assert!(page.writable || !mapping.leaf.perms.allows(Access::Write));
            }
        }
    }
    vm.slots().commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
    vm.collect(&mut idle);
    let stats = vm.stats();
    assert_eq!((stats.leaves, stats.tables_waiting), ([0; 3], 0), "every leaf is accounted for");
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated, "{pages:?}");
    assert!(pages.reachable <= 3 && pages.waiting == 0, "only tables above the slot are left: {pages:?}");
    stale.load(Relaxed)
}

/// A hardware walk has no section and no lock; the tables it reads stay until it answers a flush.
fn walked<F: Format>(vm: &Vm<F, Moving>, root: Pfn, gfn: Gfn) -> Option<Leaf> {
    let mut table = root;
    for level in (1..=F::LEVELS).rev().map(Level) {
        let page = vm.host().at(table).cast::<slat::table::Entry>();
        // SAFETY: a table page of this VM, which cannot be freed before this vCPU answers.
        let word = unsafe { page.add(F::index(gfn, level)).as_ref() }.load();
        if !F::is_present(word) {
            return None;
        }
        if !F::is_table(word, level) {
            return Some(F::read_leaf(word));
        }
        table = F::pfn(word);
    }
    None
}

#[test]
fn no_vcpu_uses_what_the_host_took_back() {
    for lock in [MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive] {
        assert_eq!(run::<Npt4>(lock, false, 2_000), 0, "{lock:?}");
    }
    assert_eq!(run::<Ept4>(MmuLock::None, false, 2_000), 0);
}

#[test]
fn negative_control_without_flushes_it_does() {
    assert!(run::<Npt4>(MmuLock::None, true, 1_000_000) > 0);
}
