//! Published bugs of shadow MMUs, tried on a guest with page tables of its own: `proof/verdicts/museum.md` names each.
//!
//! The guest has long mode. Its tables are in its first frames: 0 links 1, 1 links 2, and 2 is the page directory of
//! which each test writes the entries. The hardware of these tests has no TLB: it uses each leaf of the shadow, stale or
//! not, as long as the leaf permits the access.

use super::guest_tables::{LMA, NXE, PAE, PAT, PCIDE, PG, SMEP, WP};
use super::guest_world::{BASE, Bytes, DATA, LARGE, LARGE_PAGES, PAGES, PAGING};
use crate::nested::*;
use crate::sync::prim::Relaxed;
use crate::table::formats::X64;
use crate::*;
use std::vec::Vec;

/// Present and accessed.
const READ: u64 = 1 | 1 << 5;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const DIRTY: u64 = 1 << 6;
const LARGE_LEAF: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;

/// Bits of a page fault's error code.
const PRESENT: u32 = 1;
const BY_STORE: u32 = 2;
const BY_USER: u32 = 4;
const RESERVED: u32 = 8;
const BY_FETCH: u32 = 16;

/// The frame of a leaf table.
const LEAVES: u64 = 3;
/// A frame in no memslot.
const NOWHERE: u64 = 512;

const LONG: GuestRegisters =
    GuestRegisters { cr0: PG | WP, cr3: 0, cr4: PAE, efer: LMA | NXE, pat: PAT, pdptes: [0; 4] };

/// Result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The guest uses its page with this number.
    Page(u64),
    NoMemory,
    PageFault(u32),
}

use End::{NoMemory, Page, PageFault as Refused};

/// One access to the first page of entry `nth` of the page directory.
#[derive(Clone, Copy, Debug)]
struct Try {
    nth: u64,
    access: Access,
    privilege: Privilege,
}

/// An access by the user's code.
const fn user(nth: u64, access: Access) -> Try {
    Try { nth, access, privilege: Privilege::User }
}

/// An access by the kernel.
const fn kernel(nth: u64, access: Access) -> Try {
    Try { nth, access, privilege: Privilege::Supervisor }
}

struct World {
    idle: Idle,
    vm: Vm<X64, Bytes>,
}

impl World {
    fn new() -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<X64, _>::builder(Bytes::new()).without_two_stages().build().unwrap();
        let ram = Slot::new(SlotId(0), Gfn(0), PAGES, BASE);
        let large = Slot::new(SlotId(1), Gfn(LARGE), LARGE_PAGES, BASE + (PAGES << PAGE_SHIFT));
        vm.memory()
            .commit(&mut idle, |tx| [ram, large].into_iter().try_for_each(|slot| tx.create(slot)))
            .unwrap();
        let world = Self { idle, vm };
        world.put(0, 0, 1 << 12 | READ | WRITE | USER);
        world.put(1, 0, 2 << 12 | READ | WRITE | USER);
        world
    }

    /// Writes an entry, without any flush.
    fn put(&self, frame: u64, nth: u64, entry: u64) {
        self.vm.host().words[(frame * 512 + nth) as usize].store(entry, Relaxed);
    }

    /// Writes an entry of the page directory.
    fn directory(&self, nth: u64, entry: u64) {
        self.put(2, nth, entry);
    }

    fn tries(&mut self, registers: &GuestRegisters, tried: Try) -> End {
        let table = GuestTable::new(registers, PAGING, tried.privilege).unwrap();
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let mut guest = vcpu.guest_paging(&mut self.idle, table).unwrap();
        let asked = table.access(Gva(tried.nth << 21), tried.access).unwrap();
        for _ in 0..3 {
            if let Some(leaf) = guest.translate(asked.gpa).filter(|leaf| leaf.perms.allows(tried.access)) {
                return Page(leaf.pfn.0 - 0x1000);
            }
            match guest.fault(&mut self.idle, asked).unwrap() {
                L2Next::ForL1(fault) => return Refused(table.injection(&fault).code),
                L2Next::Handled { next: Next::Emulate(Emulate::NoMemory), .. } => return NoMemory,
                L2Next::Handled { .. } => {}
            }
        }
        panic!("the guest gets nowhere by {tried:?}");
    }

    /// Tries each access in turn, twice over.
    fn all(&mut self, registers: &GuestRegisters, expected: &[(Try, End)]) {
        for round in 0..2 {
            for &(tried, end) in expected {
                assert_eq!(self.tries(registers, tried), end, "{tried:?}, round {round}");
            }
        }
    }
}

/// CVE-2021-38198: the rights of the first path became those of every path to the same leaf table.
#[test]
fn a_leaf_table_below_two_parents_has_the_rights_of_each_path() {
    use Access::{Fetch, Read, Write};
    let lax = READ | WRITE | USER;
    let strict = [
        (lax & !WRITE, user(1, Write), PRESENT | BY_STORE | BY_USER),
        (lax & !USER, user(1, Read), PRESENT | BY_USER),
        (lax | NO_EXECUTE, user(1, Fetch), PRESENT | BY_USER | BY_FETCH),
    ];
    for (bits, refused, code) in strict {
        let allowed = Try { nth: 0, ..refused };
        for order in [
            [(allowed, Page(DATA)), (refused, Refused(code))],
            [(refused, Refused(code)), (allowed, Page(DATA))],
        ] {
            let mut world = World::new();
            world.put(LEAVES, 0, DATA << 12 | lax | DIRTY);
            world.directory(0, LEAVES << 12 | lax);
            world.directory(1, LEAVES << 12 | bits);
            world.all(&LONG, &order);
        }
    }
}

/// Linux d28c6cfbbc5e: of two large pages with the same frames, the second one got the rights of the first.
#[test]
fn two_large_pages_of_the_same_frames_have_rights_of_their_own() {
    use Access::{Read, Write};
    let leaf = LARGE << 12 | READ | USER | LARGE_LEAF;
    let refused = Refused(PRESENT | BY_STORE | BY_USER);
    let mut world = World::new();
    world.directory(0, leaf);
    world.directory(1, leaf | WRITE | DIRTY);
    let expected = [
        (user(0, Read), Page(PAGES)),
        (user(0, Write), refused),
        (user(1, Write), Page(PAGES)),
        (user(0, Write), refused),
    ];
    world.all(&LONG, &expected);
}

/// Linux 5f0b819995e1: a kernel without CR0.WP stores to a user's read-only page, after which neither may the user store
/// there nor, with SMEP, the kernel execute it.
#[test]
fn a_kernels_store_without_write_protection_gives_the_user_nothing() {
    use Access::{Fetch, Read, Write};
    for nxe in [0, NXE] {
        let registers = GuestRegisters { cr0: PG, cr4: PAE | SMEP, efer: LMA | nxe, ..LONG };
        let mut world = World::new();
        world.put(LEAVES, 0, DATA << 12 | READ | USER);
        world.directory(0, LEAVES << 12 | READ | WRITE | USER);
        let expected = [
            (user(0, Read), Page(DATA)),
            (kernel(0, Write), Page(DATA)),
            (user(0, Write), Refused(PRESENT | BY_STORE | BY_USER)),
            (kernel(0, Fetch), Refused(PRESENT | BY_FETCH)),
            (user(0, Fetch), Page(DATA)),
        ];
        world.all(&registers, &expected);
    }
}

/// Linux 9645bb56b31a: bit 63 is "no execute" or reserved, as EFER.NXE says at the moment.
#[test]
fn bit_63_means_what_efer_says_at_each_access() {
    use Access::{Fetch, Read};
    let mut world = World::new();
    world.put(LEAVES, 0, DATA << 12 | READ | USER | NO_EXECUTE);
    world.directory(0, LEAVES << 12 | READ | USER);
    let off = GuestRegisters { efer: LMA, ..LONG };
    for _ in 0..2 {
        world.all(
            &LONG,
            &[(user(0, Read), Page(DATA)), (user(0, Fetch), Refused(PRESENT | BY_USER | BY_FETCH))],
        );
        world.all(&off, &[(user(0, Read), Refused(PRESENT | BY_USER | RESERVED))]);
    }
}

/// Linux 65855ed8b034: a guest changes an entry of a leaf table, then links the table where nothing was present. It has
/// to flush nothing, so the new place must show the new entry.
#[test]
fn a_table_that_is_linked_elsewhere_shows_its_present_entries() {
    use Access::{Read, Write};
    let all = READ | WRITE | USER | DIRTY;
    let mut world = World::new();
    world.put(LEAVES, 0, DATA << 12 | all);
    world.directory(0, LEAVES << 12 | all);
    world.all(&LONG, &[(user(0, Write), Page(DATA)), (user(1, Read), Refused(BY_USER))]);
    world.put(LEAVES, 0, (DATA + 1) << 12 | all);
    world.directory(1, LEAVES << 12 | all);
    world.all(&LONG, &[(user(1, Read), Page(DATA + 1)), (user(1, Write), Page(DATA + 1))]);
}

/// CVE-2026-23401 and CVE-2026-23402: the VMM, or a device, changes an entry of a guest's table, which no write tracking
/// sees and no flush announces. The next fault there finds a present leaf of another page.
#[test]
fn an_entry_that_changes_behind_a_present_leaf_replaces_it() {
    use Access::{Read, Write};
    let changes = [
        ((DATA + 1) << 12 | READ | WRITE | USER | DIRTY, Page(DATA + 1)),
        (NOWHERE << 12 | READ | WRITE | USER | DIRTY, NoMemory),
        (DATA << 12 | READ, Refused(PRESENT | BY_STORE | BY_USER)),
        (0, Refused(BY_STORE | BY_USER)),
        (
            LARGE << 12 | READ | WRITE | USER | DIRTY | 1 << 51,
            Refused(PRESENT | BY_STORE | BY_USER | RESERVED),
        ),
    ];
    for (entry, end) in changes {
        let mut world = World::new();
        world.put(LEAVES, 0, DATA << 12 | READ | USER);
        world.directory(0, LEAVES << 12 | READ | WRITE | USER);
        assert_eq!(world.tries(&LONG, user(0, Read)), Page(DATA));
        world.put(LEAVES, 0, entry);
        for _ in 0..2 {
            assert_eq!(world.tries(&LONG, user(0, Write)), end, "{entry:#x}");
        }
        // The host takes back all pages: no leaf of the shadow outlives that, the replaced one included.
        let all = Span::sized(BASE, (PAGES + LARGE_PAGES) << PAGE_SHIFT);
        drop(world.vm.invalidate(all, Reason::Unmap).apply(&mut world.idle).settle());
        let table = GuestTable::new(&LONG, PAGING, Privilege::User).unwrap();
        let mut vcpu = world.vm.vcpu(VcpuId(0)).unwrap();
        let guest = vcpu.guest_paging(&mut world.idle, table).unwrap();
        assert_eq!(guest.translate(Gpa(0)), None, "{entry:#x}");
    }
}

/// XSA-168 and CVE-2022-1789: flushes of addresses that are not canonical, and flushes while paging is off.
#[test]
fn flushes_of_any_address_in_any_mode_do_what_they_say_and_no_more() {
    let addresses =
        [0, 0xfff, 1 << 21, 1 << 32, (1 << 47) - 1, 1 << 47, 1 << 48, 1 << 63, u64::MAX << 47, u64::MAX];
    let mut flushes: Vec<GuestFlush> = addresses.map(|at| GuestFlush::Address(Gva(at))).into();
    flushes.extend(addresses.map(|at| GuestFlush::AddressOf(0xfff, Gva(at))));
    flushes.extend([GuestFlush::Pcid(0), GuestFlush::Pcid(0xfff), GuestFlush::All]);
    let registers = GuestRegisters { cr4: PAE | PCIDE, ..LONG };
    let all = READ | WRITE | USER | DIRTY;
    let tried = user(0, Access::Write);
    let mut world = World::new();
    world.directory(0, LEAVES << 12 | all);
    // Before the vCPU has turned its paging on, and then after each access.
    for (nth, flush) in flushes.iter().chain(&flushes).enumerate() {
        world.vm.vcpu(VcpuId(0)).unwrap().guest_flushes(*flush);
        let page = DATA + nth as u64 % 2;
        world.put(LEAVES, 0, page << 12 | all);
        world.vm.vcpu(VcpuId(0)).unwrap().guest_flushes(GuestFlush::AddressOf(0, Gva(0)));
        assert_eq!(world.tries(&registers, tried), Page(page), "after {flush:?}");
    }
}

/// XSA-173: frames of large pages whose numbers have more bits than a field of the shadow was wide.
#[test]
fn large_pages_beyond_memory_are_no_memory_and_wrap_around_to_none() {
    let mut world = World::new();
    for shift in 20..PAGING.physical_bits - PAGE_SHIFT {
        let frame = LARGE | 1 << shift;
        world.directory(0, frame << 12 | READ | WRITE | USER | DIRTY | LARGE_LEAF);
        world.vm.vcpu(VcpuId(0)).unwrap().guest_flushes(GuestFlush::All);
        for access in [Access::Read, Access::Write] {
            assert_eq!(world.tries(&LONG, user(0, access)), NoMemory, "frame {frame:#x}");
        }
    }
    world.directory(0, LARGE << 12 | READ | WRITE | USER | DIRTY | LARGE_LEAF);
    assert_eq!(world.tries(&LONG, user(0, Access::Write)), Page(PAGES));
}
