//! Which functions of a host are called inside a section of the read side, and which outside: as [`Host`] promises.
//!
//! A transaction that takes a memslot away returns only when all sections have ended. A host may then unmap the memory.
//! If the engine read it outside of a section, it would read it after that.

use super::*;
use crate::notify::begun::Scope;
use crate::table::formats::X64;
use crate::table::{Heap, Own, TableMemory, TablesOf};
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// How often a function of the host was called.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    /// Inside a section.
    inside: u64,
    outside: u64,
    /// While the thread could take its token.
    takes: u64,
}

type Calls = BTreeMap<&'static str, Count>;

/// L1's memory, and a host that records where it is called.
struct Recorder<F: Format> {
    ram: Ram,
    vm: OnceLock<Weak<Vm<F, Self>>>,
    calls: Mutex<Calls>,
}

impl<F: Format> Recorder<F> {
    fn vm(builder: impl FnOnce(Builder<F, Self>) -> Builder<F, Self>) -> Arc<Vm<F, Self>> {
        let host = Self { ram: Ram::new(), vm: OnceLock::new(), calls: Mutex::default() };
        let vm = Arc::new(builder(Vm::builder(host)).build().unwrap());
        vm.host().vm.set(Arc::downgrade(&vm)).ok().unwrap();
        vm
    }

    fn put(&self, frame: u64, entry: u64, word: u64) {
        self.ram.words[(frame * 512 + entry) as usize].store(word, Relaxed);
    }

    fn record(&self, function: &'static str) {
        let vm = self.vm.get().and_then(Weak::upgrade);
        let is_inside = vm.is_some_and(|vm| vm.reads.is_any_inside());
        let takes = Idle::take().is_some();
        let mut calls = self.calls.lock().unwrap();
        let count = calls.entry(function).or_default();
        count.inside += u64::from(is_inside);
        count.outside += u64::from(!is_inside);
        count.takes += u64::from(takes);
    }
}

// SAFETY: the heap's own functions.
unsafe impl<F: Format> TableMemory for Recorder<F> {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        Heap.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Heap.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.record("at");
        Heap.at(pfn)
    }
}

impl<F: Format> Host for Recorder<F> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.record("lookup");
        let frame = (hva.0 - BASE.0) >> PAGE_SHIFT;
        (frame.is_multiple_of(2)).then_some(HostPage { pfn: Pfn(frame), ..HostPage::PLAIN })
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
    let mut idle = Idle::take().unwrap();
    let vm = Recorder::<Npt4>::vm(|builder| builder);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), READ_ONLY, BASE))).unwrap();
    let put = |frame, entry, word| vm.host().put(frame, entry, word);
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
            assert!(matches!(done, Ok(L2Next::Handled { .. })), "{done:?}");
            drop(l2.enter(&mut idle, &mut NoTlb));
            let _ = vm.memory().try_walk_l1(&table, access);
            let _ = vm.memory().look_l1(&table, access.gpa);
        }
        let (at, mut bytes) = (Gfn(40).gpa(), [0; 12]);
        vm.memory().read_bytes(&mut idle, at, &mut bytes).unwrap();
        vm.memory().write_bytes(&mut idle, at, &bytes).unwrap();
        vcpu.l1_flushes(|_: &EptTable| true);
        let _ = vcpu.nested(&mut idle, table).unwrap();
        vm.l1_broadcasts(&mut idle, SpaceId(0), Span::sized(Gfn(0), 1024), |_: &EptTable| true);
        for gfn in [20, 21, 22] {
            let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
        }
        drop(
            vm.invalidate(Span::sized(BASE + (20 << PAGE_SHIFT), 4096), Reason::Unmap)
                .apply(&mut idle)
                .settle(),
        );
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
    let of = |function| calls.get(function).copied().unwrap_or_default();
    for function in ["lookup", "read", "read_all", "compare_exchange"] {
        let Count { inside, outside, takes } = of(function);
        assert!(inside > 0 && outside == 0 && takes == 0, "{function} inside a section: {calls:?}");
    }
    for function in ["resolve", "broadcast_flush"] {
        let Count { inside, outside, .. } = of(function);
        assert!(inside == 0 && outside > 0, "{function} outside of sections: {calls:?}");
    }
}

/// Makes each call that takes no token, opens a section, and calls the host in it.
fn calls_without_a_token() -> Calls {
    let mut idle = Idle::take().unwrap();
    let vm = Recorder::<X64>::vm(Builder::without_two_stages);
    let ram = Slot::new(SlotId(0), Gfn(0), READ_ONLY, BASE).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    // The guest's table, in long mode: its page 7 is at linear page 5 of the lowest 2 MiB.
    for level in 0..3 {
        vm.host().put(CHAIN[level], 0, CHAIN[level + 1] << 12 | 7);
    }
    vm.host().put(CHAIN[3], 5, 8 << 12 | 3);
    let mut registers = GuestRegisters { pat: 0x0007_0406_0007_0406, ..GuestRegisters::default() };
    (registers.cr0, registers.cr3) = (1 << 31 | 1 << 16, CHAIN[0] << 12);
    (registers.cr4, registers.efer) = (1 << 5, 1 << 10 | 1 << 11);
    let offered = GuestPaging { physical_bits: 46, large_1g: false, reserves_global: false };
    let table = GuestTable::new(&registers, offered, Privilege::Supervisor).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let access = table.access(Gva(0x5123), Access::Write).unwrap();
    let mut guest = vcpu.guest_paging(&mut idle, table).unwrap();
    guest.fault(&mut idle, access).unwrap();
    let mut change = vm.invalidate(Span::sized(BASE + (8 << PAGE_SHIFT), 4096), Reason::Unmap);
    change.begun.edit(&mut idle, &Scope::Whole, None);
    let slots = vm.memory();
    drop(idle);

    vm.host().calls.lock().unwrap().clear();
    let _ = guest.translate(access.gpa);
    vcpu.guest_flushes(GuestFlush::Address(Gva(0x5123)));
    vm.host().put(CHAIN[3], 5, 8 << 12 | 3); // without A and D
    let _ = slots.try_walk_l1(&table, access);
    let _ = slots.look_l1(&table, access.gpa);
    let _ = slots.is_dirty(Gfn(8));
    slots.mark_dirty(Span::new(Gfn(0), Gfn(READ_ONLY)));
    slots.mark_dirty_bits(SlotId(0), 0, &[u64::MAX]).unwrap();
    vm.mark_dirty(ram.hvas());
    drop(change);
    assert!(Idle::take().is_some(), "afterwards the token is free");
    vm.host().calls.lock().unwrap().clone()
}

#[test]
fn a_thread_cannot_take_its_token_inside_a_section() {
    let calls = calls_without_a_token();
    for function in ["at", "read", "read_all", "compare_exchange"] {
        assert!(calls.get(function).is_some_and(|count| count.inside > 0), "{function} is called: {calls:?}");
    }
    // Where it waits for vCPUs it is in no section.
    let elsewhere = |function: &str| !["kick", "broadcast_flush"].contains(&function);
    assert!(calls.iter().all(|(function, count)| !elsewhere(function) || count.takes == 0), "{calls:?}");
}
