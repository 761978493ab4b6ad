//! Which functions of a host are called inside a section of the read side, and which outside: as [`Host`] promises.
//!
//! A transaction that takes a memslot away returns only when all sections have ended. A host may then unmap the memory.
//! If the engine read it outside of a section, it would read it after that.

use super::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// For each function of the host: number of calls inside a section, and outside.
type Calls = BTreeMap<&'static str, [u64; 2]>;

/// L1's memory, and a host that records where it is called.
struct Recorder {
    ram: Ram,
    vm: OnceLock<Weak<Vm<Npt4, Self>>>,
    calls: Mutex<Calls>,
}

impl Recorder {
    fn record(&self, function: &'static str) {
        let vm = self.vm.get().and_then(Weak::upgrade);
        let is_outside = !vm.is_some_and(|vm| vm.reads.is_any_inside());
        self.calls.lock().unwrap().entry(function).or_default()[usize::from(is_outside)] += 1;
    }
}

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Recorder {}

impl Host for Recorder {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.record("lookup");
        let frame = (hva.0 - BASE.0) >> PAGE_SHIFT;
        (frame.is_multiple_of(2)).then(|| HostPage { pfn: Pfn(frame), ..HostPage::PLAIN })
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.record("resolve");
        self.ram.resolve(idle, hva, access)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        self.record("read");
        self.ram.read(hva)
    }

    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        self.record("read_all");
        (0..).zip(words).all(|(nth, word)| {
            let read = self.ram.read(hva + nth * 8);
            *word = read.unwrap_or(*word);
            read.is_some()
        })
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        self.record("compare_exchange");
        self.ram.compare_exchange(hva, current, new)
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        self.record("broadcast_flush");
        false
    }

    fn kick(&self, _: VcpuId) {
        self.record("kick");
    }
}

/// L1's tables map L2's page `n` to L1's page `32 + n`, and 2 MiB of L2 by one leaf.
fn calls() -> Calls {
    let recorder = Recorder { ram: Ram::new(), vm: OnceLock::new(), calls: Mutex::default() };
    let mut idle = Idle::take().unwrap();
    let vm = Arc::new(Vm::<Npt4, _>::builder(recorder).build().unwrap());
    vm.host().vm.set(Arc::downgrade(&vm)).ok().unwrap();
    vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), READ_ONLY, BASE))).unwrap();
    let put = |frame: u64, entry: u64, word: u64| {
        vm.host().ram.words[(frame * 512 + entry) as usize].store(word, Relaxed);
    };
    for level in 0..3 {
        put(CHAIN[level], 0, CHAIN[level + 1] << 12 | 7);
    }
    for page in 0..8 {
        put(CHAIN[3], page, (32 + page) << 12 | 6 << 3 | 7);
    }
    put(CHAIN[2], 1, 6 << 3 | 1 << 7 | 7);
    let table = ept(CHAIN[0], 4, true);

    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let accesses = [0, 1, 2, 4, 513].map(|page| L1Access::new(Gfn(page).gpa(), Access::Write));
    for _ in 0..2 {
        for access in accesses {
            let mut l2 = vcpu.nested(&mut idle, table).unwrap();
            let done = l2.fault(&mut idle, access);
            assert!(matches!(done, Ok(L2Done::Handled { .. })), "{done:?}");
            drop(l2.enter(&mut idle, &mut NoTlb));
            let _ = vm.slots().try_walk_l1(&table, access);
            let _ = vm.slots().look_l1(&table, access.gpa);
        }
        vcpu.l1_flushes(|_: &EptTable| true);
        let _ = vcpu.nested(&mut idle, table).unwrap();
        vm.l1_broadcasts(&mut idle, SpaceId(0), Span::sized(Gfn(0), 1024), |_: &EptTable| true);
        for gfn in [20, 21, 22] {
            vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
        }
        vm.invalidate(Span::sized(BASE + (20 << PAGE_SHIFT), 4096), Why::Unmap).apply(&mut idle).settle();
    }
    drop(vcpu);
    vm.host().calls.lock().unwrap().clone()
}

struct NoTlb;

impl Translations for NoTlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
fn memory_of_the_guest_is_read_inside_sections_and_the_host_sleeps_outside() {
    let calls = calls();
    let inside = ["lookup", "read", "read_all", "compare_exchange"];
    let outside = ["resolve", "broadcast_flush"];
    for function in inside {
        assert!(
            matches!(calls.get(function), Some(&[inside, 0]) if inside > 0),
            "{function} inside a section: {calls:?}"
        );
    }
    for function in outside {
        assert!(
            matches!(calls.get(function), Some(&[0, outside]) if outside > 0),
            "{function} outside of sections: {calls:?}"
        );
    }
    let known = [inside.as_slice(), outside.as_slice(), &["kick"]].concat();
    assert!(calls.keys().all(|function| known.contains(function)));
}
