//! Guests on their own threads use more memory than the limit allows. Meanwhile the host ages, evicts, moves
//! and copies. In the end every addition of every guest must be there. The negative control omits the flushes:
//! a TLB then goes on using evicted pages.

use crate::fixture::{BASE, at, pages};
use slat::table::formats::Npt4;
use slat::{Fault, Format, Gfn, Host, Idle, PAGE_SIZE, Slot, SlotId, VcpuId, Vm};
use slat_mm::*;
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

const PAGES: u64 = 1024;
const VCPUS: u64 = 4;
/// Additions of each vCPU.
const STEPS: u64 = 20_000;
const LIMIT: u64 = PAGES * PAGE_SIZE * 6 / 10;

/// Adds one to numbers in its own pages, mostly in a few of them.
struct Guest {
    random: fastrand::Rng,
    own: u64,
    left: u64,
    added: Vec<u64>,
}

impl Program for Guest {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 {
            return Ok(Step::Stop);
        }
        let (mut random, own) = (self.random.clone(), PAGES / VCPUS);
        let end = if random.u8(..16) == 0 { own } else { own / 16 };
        let number = random.u64(..end);
        let gpa = Gfn(number * VCPUS + self.own).gpa();
        let mut word = [0; 8];
        core.load(gpa, &mut word)?;
        core.store(gpa, &(u64::from_le_bytes(word) + 1).to_le_bytes())?;
        self.added[number as usize] += 1;
        (self.random, self.left) = (random, self.left - 1);
        Ok(Step::Next)
    }
}

/// Swap outside the arena. Where guests write to free frames, those frames must not be tables.
#[derive(Debug, Default)]
struct Disk(Mutex<Vec<u8>>);

impl SwapDevice for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.0.lock().unwrap();
        let end = offset as usize + bytes.len();
        if disk.len() < end {
            disk.resize(end, 0);
        }
        disk[offset as usize..end].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        bytes.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(bytes.len())
    }
}

/// The host's changes meanwhile. They make no tables.
fn meddle(space: &AddressSpace, idle: &mut Idle, round: u64) {
    let some = pages(round * 37 % (PAGES - 100), 100);
    match round % 5 {
        0 => drop(space.migrate(idle, some).unwrap()),
        1 => drop(space.pageout(idle, some).unwrap()),
        2 => drop(space.reclaim(idle, 50)),
        3 => space.clear_soft_dirty(idle, some).unwrap(),
        _ => {
            let seq = space.lru().unwrap().generations()[0].generations.last().unwrap().seq;
            space.age(idle, Node(0), seq, true, true).unwrap();
        }
    }
}

/// The number of pages that hold a wrong number.
fn wrong_pages(flushes: bool, thp: bool) -> usize {
    let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
    let swap = Swap::builder().device(Disk::default(), 64 << 20).build(&arena).unwrap();
    let space = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).thp(thp).build().unwrap();
    space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let mut idle = Idle::take().unwrap();
    (0..PAGES).for_each(|page| space.write(&mut idle, at(page), &[0; 8]).unwrap());
    // A host that says that a flush was broadcast, and does none.
    let host = HostView::new(&space).with_broadcast(move |_| !flushes);
    let vm = Arc::new(Vm::<Npt4, _>::builder(host).vcpus(VCPUS as u32).build().unwrap());
    space.register(&vm);
    // The limit also covers the guest's tables.
    assert_eq!(space.reclaim(&mut idle, 100), 100);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, BASE))).unwrap();
    // SAFETY: the window covers the arena's memory, which stays until the end.
    let window = unsafe { Window::new(arena.base(), arena.stats().frames + 512) };

    let (over, start) = (AtomicBool::new(false), Barrier::new(VCPUS as usize + 1));
    let added: Vec<Vec<u64>> = thread::scope(|scope| {
        let (vm, space, over, start) = (&vm, &space, &over, &start);
        let run = |number: u64| {
            move || {
                let mut idle = Idle::take().unwrap();
                let vcpu = vm.vcpu(VcpuId(number as u32)).unwrap();
                let mut cpu = Cpu::new(vcpu, window).untimed();
                let added = vec![0; (PAGES / VCPUS) as usize];
                let mut guest =
                    Guest { random: fastrand::Rng::with_seed(number), own: number, left: STEPS, added };
                start.wait();
                let exit = cpu.run(&mut idle, &mut guest);
                // A page that changes while it is stored does not match its checksum.
                assert!(!flushes || exit == Exit::Stopped, "{exit:?}");
                guest.added
            }
        };
        let guests: Vec<_> = (0..VCPUS).map(|number| scope.spawn(run(number))).collect();
        let host = scope.spawn(move || {
            let mut idle = Idle::take().unwrap();
            start.wait();
            for round in 0.. {
                if over.load(Relaxed) {
                    break;
                }
                meddle(space, &mut idle, round);
                // Each of the threads that ask at the same moment may get a page.
                let charged = space.charged();
                assert!(charged <= LIMIT + VCPUS * PAGE_SIZE, "{charged} of {LIMIT}");
            }
        });
        let added = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
        over.store(true, Relaxed);
        host.join().unwrap();
        added
    });
    let stats = space.lru().unwrap().stats();
    assert!(!flushes || stats.refaults > 100 && stats.direct_reclaims > 0, "{stats:?}");
    let is_wrong = |page: &u64| {
        let mut word = [0; 8];
        let read = space.read(&mut idle, at(*page), &mut word);
        let expected = added[(page % VCPUS) as usize][(page / VCPUS) as usize];
        read.is_err() || u64::from_le_bytes(word) != expected
    };
    let wrong = (0..PAGES).filter(is_wrong).count();
    let known: u64 =
        space.lru().unwrap().generations()[0].generations.iter().map(|found| found.anon + found.file).sum();
    let there = (0..PAGES).filter(|&page| space.lookup(at(page), slat::Access::Read).is_some()).count();
    assert_eq!(known, there as u64, "each page is in one generation");
    wrong
}

#[test]
fn guests_beyond_their_limit_lose_nothing() {
    for thp in [false, true] {
        assert_eq!(wrong_pages(true, thp), 0);
    }
}

#[test]
fn negative_control_without_flushes_evicted_pages_are_used() {
    assert!((0..20).any(|_| wrong_pages(false, false) > 0));
}
