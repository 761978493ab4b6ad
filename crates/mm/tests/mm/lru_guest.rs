//! Tests of the LRU with secondary MMUs: a guest uses memory, and this process does not see the accesses.

use crate::fixture::{BASE, at, get};
use slat::notify::NoPages;
use slat::table::formats::{Ept4NoAd, Npt4};
use slat::{
    AccessedPages, Again, Event, Fault, Format, Gfn, Host, Hva, Idle, PAGE_SIZE, Pages, Reason, SecondaryMmu,
    Slot, SlotId, Span, VcpuId, Vm, Young,
};
use slat_mm::*;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const NODE: Node = Node(0);
const PAGES: u64 = 1024;

/// Adds one to a number in each of these pages.
struct Use {
    pages: Vec<u64>,
    next: usize,
}

impl Program for Use {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let Some(&page) = self.pages.get(self.next) else { return Ok(Step::Stop) };
        let mut number = [0; 8];
        core.load(Gfn(page).gpa(), &mut number)?;
        core.store(Gfn(page).gpa(), &(u64::from_le_bytes(number) + 1).to_le_bytes())?;
        self.next += 1;
        Ok(Step::Next)
    }
}

/// A host without a guest yet.
struct Stage {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
}

impl Stage {
    fn new(settings: LruSettings) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
        let space = AddressSpace::builder(&arena).swap(&swap).lru(settings).build().unwrap();
        space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        Self { arena, space }
    }

    /// A VM that the address space knows through `listener`.
    fn vm<F: Format>(&self, idle: &mut Idle) -> Arc<Vm<F, HostView>> {
        let vm = Arc::new(Vm::<F, _>::builder(HostView::new(&self.space)).vcpus(2).build().unwrap());
        vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, BASE))).unwrap();
        vm
    }

    fn window(&self) -> Window {
        // SAFETY: the window covers the arena's memory, and the VMs keep the arena.
        unsafe { Window::new(self.arena.base(), self.arena.stats().frames + 512) }
    }

    fn lru(&self) -> &Lru {
        self.space.lru().unwrap()
    }

    fn age(&self, idle: &mut Idle) {
        let seq = self.lru().generations()[0].generations.last().unwrap().seq;
        assert_eq!(self.space.age(idle, NODE, seq, true, true), Ok(true));
    }

    /// The pages in a generation.
    fn generation(&self, seq: u64) -> Vec<u64> {
        (0..PAGES).filter(|&page| self.space.generation(at(page)) == Some(seq)).collect()
    }
}

fn use_pages<F: Format>(
    cpu: &mut Cpu<'_, F, HostView>,
    idle: &mut Idle,
    pages: impl IntoIterator<Item = u64>,
) {
    let mut program = Use { pages: pages.into_iter().collect(), next: 0 };
    assert_eq!(cpu.run(idle, &mut program), Exit::Stopped);
}

fn all() -> Vec<u64> {
    (0..PAGES).collect()
}

fn some() -> Vec<u64> {
    (0..PAGES).filter(|page| page % 5 < 2).collect()
}

fn others() -> Vec<u64> {
    (0..PAGES).filter(|page| page % 5 >= 2).collect()
}

/// Aging tells the pages that a guest uses from the others, in every format. The guest's TLB holds all of them.
fn used_pages_age<F: Format>() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings::default());
    let vm = stage.vm::<F>(&mut idle);
    stage.space.register(&vm);
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
    use_pages(&mut cpu, &mut idle, all());
    stage.age(&mut idle);
    assert_eq!(stage.generation(3), all());
    for round in 0..3 {
        use_pages(&mut cpu, &mut idle, some());
        stage.age(&mut idle);
        assert_eq!(stage.generation(4 + round), some(), "the pages that the guest used");
    }
    assert_eq!(stage.space.evict(&mut idle, NODE, 4, None, None), Ok(others().len() as u64));
    assert_eq!(stage.generation(6), some(), "no other page is left");
    use_pages(&mut cpu, &mut idle, all());
    drop(cpu);
    for page in 0..PAGES {
        let times = if page % 5 < 2 { 5 } else { 2 };
        assert_eq!(get(&stage.space, &mut idle, page), times, "page {page}");
    }
}

#[test]
fn aging_finds_the_pages_that_a_guest_uses() {
    used_pages_age::<Npt4>();
}

#[test]
fn aging_finds_the_pages_that_a_guest_uses_without_accessed_bits() {
    used_pages_age::<Ept4NoAd>();
}

/// Negative control of the flush at the end of a pass: a TLB that holds a page does not set the accessed bit
/// again.
#[test]
fn negative_control_without_a_flush_a_tlb_hides_what_is_used() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings { flush: false, ..LruSettings::default() });
    let vm = stage.vm::<Npt4>(&mut idle);
    stage.space.register(&vm);
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
    use_pages(&mut cpu, &mut idle, 0..32);
    stage.age(&mut idle);
    use_pages(&mut cpu, &mut idle, 0..32);
    stage.age(&mut idle);
    assert_eq!(stage.generation(3).len(), 32, "all pages look idle");
}

/// Without the walk, aging sees what this process uses. It sees a guest only when the guest faults. Eviction
/// still asks the guest.
#[test]
fn without_the_walk_a_guest_is_asked_at_eviction_only() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings { walk_secondary: false, ..LruSettings::default() });
    let vm = stage.vm::<Npt4>(&mut idle);
    stage.space.register(&vm);
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
    use_pages(&mut cpu, &mut idle, all());
    stage.age(&mut idle);
    assert_eq!(stage.generation(3), all(), "the guest faulted");
    assert!(
        vm.young(&mut idle, Span::sized(BASE, PAGES * PAGE_SIZE), Young::Clear),
        "the guest's own bits did not change"
    );
    drop(cpu);
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
    use_pages(&mut cpu, &mut idle, some());
    stage.age(&mut idle);
    assert_eq!(stage.generation(3), all(), "aging did not ask the guest");
    assert_eq!(stage.space.evict(&mut idle, NODE, 3, None, None), Ok(others().len() as u64));
    assert_eq!(stage.generation(5), some(), "eviction asked the guest");
    assert_eq!(stage.lru().stats().promoted, some().len() as u64);

    // From now on, passes ask the guest.
    stage.lru().set_walk_secondary(true);
    stage.age(&mut idle);
    use_pages(&mut cpu, &mut idle, [0, 1]);
    stage.age(&mut idle);
    assert_eq!(stage.generation(6), [0, 1]);
}

/// A listener that keeps accessed bits. It answers about single pages. With `ages`, it also answers about many
/// pages at once.
#[derive(Default)]
struct Device {
    ages: bool,
    used: Mutex<BTreeSet<u64>>,
    /// How often it was asked about one page, was asked about many pages, and was told to forget.
    asked: AtomicU64,
    aged: AtomicU64,
    flushed: AtomicU64,
    changes: Mutex<Vec<(Span<Hva>, Reason)>>,
}

impl Device {
    fn new(ages: bool, used: impl IntoIterator<Item = u64>) -> Arc<Self> {
        Arc::new(Self { ages, used: Mutex::new(used.into_iter().collect()), ..Self::default() })
    }

    fn take_used(&self, hvas: Span<Hva>) -> Vec<u64> {
        let mut used = self.used.lock().unwrap();
        let taken: Vec<u64> = used.iter().copied().filter(|&page| hvas.contains(at(page))).collect();
        used.retain(|page| !taken.contains(page));
        taken
    }
}

impl SecondaryMmu for Device {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        self.changes.lock().unwrap().push((event.hvas, event.why));
        change(idle, &mut NoPages);
        Ok(())
    }

    fn young(&self, _: &mut Idle, hvas: Span<Hva>, young: Young) -> bool {
        assert_eq!(young, Young::Clear);
        self.asked.fetch_add(1, Relaxed);
        !self.take_used(hvas).is_empty()
    }

    fn ages(&self) -> bool {
        self.ages
    }

    fn age(&self, _: &mut Idle, hvas: Span<Hva>, seen: &mut dyn FnMut(&AccessedPages<Hva>)) {
        assert!(self.ages, "the listener refused aging");
        self.aged.fetch_add(1, Relaxed);
        for page in self.take_used(hvas) {
            seen(&AccessedPages::all(Span::sized(at(page), PAGE_SIZE)));
        }
    }

    fn forget(&self, _: &mut Idle, _: Span<Hva>) {
        assert!(self.ages, "the listener refused aging");
        self.flushed.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_listener_that_cannot_age_is_asked_at_eviction() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings::default());
    for page in 0..PAGES {
        stage.space.write(&mut idle, at(page), &page.to_le_bytes()).unwrap();
    }
    stage.age(&mut idle);
    let (slow, quick) = (Device::new(false, [5, 600]), Device::new(true, [6, 601]));
    stage.space.register(&slow);
    stage.space.register(&quick);
    stage.age(&mut idle);
    assert_eq!(stage.generation(4), [6, 601], "the other listener was skipped");
    let counts =
        |device: &Device| [&device.asked, &device.aged, &device.flushed].map(|count| count.load(Relaxed));
    assert_eq!((counts(&slow), counts(&quick)), ([0, 0, 0], [0, 2, 1]));

    quick.used.lock().unwrap().insert(7);
    assert_eq!(stage.space.evict(&mut idle, NODE, 3, None, None), Ok(PAGES - 5));
    assert_eq!(stage.generation(5), [5, 7, 600], "eviction asks each listener");
    assert_eq!(counts(&slow)[0], PAGES - 2, "eviction asks about each candidate");
}

/// A listener that loses a whole range hears of ranges without gaps.
#[test]
fn a_vm_loses_only_evicted_pages() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings::default());
    for page in 0..PAGES {
        stage.space.write(&mut idle, at(page), &page.to_le_bytes()).unwrap();
    }
    stage.age(&mut idle);
    let device = Device::new(true, some());
    stage.space.register(&device);
    stage.age(&mut idle);
    device.changes.lock().unwrap().clear();
    assert_eq!(stage.space.evict(&mut idle, NODE, 3, None, None), Ok(others().len() as u64));
    let changes = std::mem::take(&mut *device.changes.lock().unwrap());
    assert!(changes.iter().all(|&(_, why)| why == Reason::Reclaim));
    let told: Vec<u64> =
        (0..PAGES).filter(|&page| changes.iter().any(|(hvas, _)| hvas.contains(at(page)))).collect();
    assert_eq!(told, others());
}

/// The spared pages stay mapped in the guest, and no others do.
#[test]
fn an_eviction_spares_the_pages_that_a_vm_uses() {
    let mut idle = Idle::take().unwrap();
    let stage = Stage::new(LruSettings::default());
    let vm = stage.vm::<Npt4>(&mut idle);
    stage.space.register(&vm);
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
    use_pages(&mut cpu, &mut idle, all());
    stage.age(&mut idle);
    use_pages(&mut cpu, &mut idle, some());
    stage.age(&mut idle);
    let before = stage.space.stats().notified(Reason::Reclaim);
    assert_eq!(stage.space.evict(&mut idle, NODE, 3, None, None), Ok(others().len() as u64));
    let notified = stage.space.stats().notified(Reason::Reclaim) - before;
    assert!(
        notified <= others().len() as u64 / 50,
        "{notified} notifications: one notification covers many pages"
    );
    for page in 0..PAGES {
        let mapped = vm.memory().translate(&mut idle, Gfn(page)).is_some();
        assert_eq!(mapped, page % 5 < 2, "page {page}");
    }
}

/// One vCPU uses twice as much memory as the limit. The same accesses evict the same pages each time.
#[test]
fn a_guest_over_its_limit_evicts_the_same_pages_each_time() {
    let run = || {
        let mut idle = Idle::take().unwrap();
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(16 << 20).build(&arena).unwrap();
        let limit = 3 << 20;
        let space = AddressSpace::builder(&arena).swap(&swap).limit(limit).build().unwrap();
        space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let evicted = order.clone();
        space.lru().unwrap().on_evict(Box::new(move |hva| evicted.lock().unwrap().push(hva)));
        let stage = Stage { arena, space };
        let vm = stage.vm::<Npt4>(&mut idle);
        stage.space.register(&vm);
        let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), stage.window()).untimed();
        let mut random = fastrand::Rng::with_seed(1);
        let mut times = vec![0; PAGES as usize];
        for _ in 0..200 {
            let pages: Vec<u64> = (0..64)
                .map(|_| {
                    // Half of all accesses go to an eighth of all pages.
                    let end = if random.bool() { PAGES / 8 } else { PAGES };
                    random.u64(..end)
                })
                .collect();
            for &page in &pages {
                times[page as usize] += 1;
            }
            use_pages(&mut cpu, &mut idle, pages);
            assert!(stage.space.charged() <= limit);
        }
        for (page, &times) in times.iter().enumerate() {
            assert_eq!(get(&stage.space, &mut idle, page as u64), times, "page {page}");
        }
        drop(cpu);
        let order = order.lock().unwrap().clone();
        (order, stage.lru().stats())
    };
    let (first, second) = (run(), run());
    assert!(first.1.refaults > 100 && first.1.passes > 3, "{:?}", first.1);
    assert_eq!(first, second);
}
