//! A guest's own page tables: all combinations of rights, and random ones, and each bit and each pair, against the oracle;
//! registers; four-byte entries.

use super::bits::{Chain, each_change, write};
use super::manual::Words;
use super::manual::x86::Guest;
use super::*;
use fastrand::Rng;
use std::collections::BTreeMap;

pub(super) const PG: u64 = 1 << 31;
pub(super) const WP: u64 = 1 << 16;
pub(super) const PSE: u64 = 1 << 4;
pub(super) const PAE: u64 = 1 << 5;
const LA57: u64 = 1 << 12;
pub(super) const PCIDE: u64 = 1 << 17;
pub(super) const SMEP: u64 = 1 << 20;
pub(super) const SMAP: u64 = 1 << 21;
pub(super) const LMA: u64 = 1 << 10;
pub(super) const NXE: u64 = 1 << 11;

const ROOT: u64 = 4;
const PAGING: GuestPaging = GuestPaging { physical_bits: 46, large_1g: true, reserves_global: false };
const PRIVILEGES: [Privilege; 3] = [Privilege::User, Privilege::Supervisor, Privilege::SupervisorWithAc];
pub(super) const PAT: u64 = 0x0007_0406_0007_0406;

/// 32-bit, PAE, four levels, five.
const MODES: [(u64, u64); 4] = [(PSE, 0), (PAE, 0), (PAE, LMA), (PAE | LA57, LMA)];

fn registers((cr4, efer): (u64, u64), switches: u64) -> GuestRegisters {
    let bit = |nth: u32, bit: u64| if switches >> nth & 1 == 1 { bit } else { 0 };
    GuestRegisters {
        cr0: PG | bit(0, WP),
        cr3: ROOT << 12,
        cr4: cr4 | bit(1, SMEP) | bit(2, SMAP),
        efer: efer | bit(3, NXE),
        pat: PAT,
        pdptes: [ROOT << 12 | 1, (ROOT + 1) << 12 | 1, 0, ROOT << 12 | 0x19],
    }
}

/// Compares one access by the table with the oracle's: the answers, the tables, and the marks.
fn compare(world: &mut World, words: &mut Words, walker: &Guest, va: u64, access: Access) -> Result<(), u32> {
    let Guest { registers, paging, privilege } = *walker;
    let table = GuestTable::new(&registers, paging, privilege).unwrap();
    let mut marked = Vec::new();
    let expected = walker.walk(words, va, access, &mut marked);
    let expected = expected.map(|page| (page.frame, [page.rights[0], page.rights[1], page.rights[2]]));
    let address = Gva(va);
    let asked = table.access(address, access).expect("it is canonical");
    let found = match world.walk(&table, asked) {
        Ok(leaf) => {
            let perms = leaf.rights.of(privilege == Privilege::User);
            assert_eq!(leaf.rights, L1Rights::plain(perms), "one kind of accesses");
            Ok((leaf.gfn.0, ALL.map(|kind| perms.allows(kind))))
        }
        Err(L1Stop::Fault(fault)) => {
            let PageFault { address: told, code } = table.injection(&fault);
            assert_eq!(told, address);
            Err(code)
        }
        Err(other) => panic!("{other}"),
    };
    assert_eq!(found, expected, "{walker:?}: {access:?} at {va:#x}");
    for (&place, &word) in &*words {
        assert_eq!(world.get(place >> 12, place >> 3 & 511), word, "{walker:?}: {access:?}, {place:#x}");
    }
    // A frame that is marked without need is still marked at the next comparison.
    if !marked.is_empty() {
        marked.sort_unstable();
        marked.dedup();
        assert_eq!(world.dirty(), marked, "{walker:?}");
        world.clean();
    }
    expected.map(drop)
}

/// A chain of tables for one address, with these bits in the upper entry and in the leaf.
fn chain(world: &World, walker: &Guest, upper: u64, leaf: u64) -> (Words, u64) {
    let mut words = Words::new();
    let links: &[u64] =
        match (walker.registers.cr4 & PAE, walker.registers.cr4 & LA57, walker.registers.efer & LMA) {
            (0, ..) => {
                // Two entries of four bytes each; their neighbours are zero, and stay so.
                let low = |frame: u64, bits: u64| (frame << 12 | bits) & 0xffff_ffff;
                words.insert(ROOT << 12, low(16, upper) | 0xdead_0000 << 32);
                words.insert(16 << 12 | 2 << 3, low(33, leaf) << 32 | 0xbeef_0000);
                &[]
            }
            (_, _, 0) => &[],
            (_, 0, _) => &[18, 19],
            _ => &[17, 18, 19],
        };
    if words.is_empty() {
        let mut at = ROOT;
        for &next in links {
            words.insert(at << 12, next << 12 | 7);
            at = next;
        }
        words.insert(at << 12, 16 << 12 | upper);
        words.insert(16 << 12 | 5 << 3, 33 << 12 | leaf);
    }
    for (&place, &word) in &words {
        world.put(place >> 12, place >> 3 & 511, word);
    }
    (words, 0x5123)
}

/// All combinations of W, U and NX in two entries, of the registers' bits, of privileges and accesses.
fn each_combination() -> [u32; 2] {
    let mut world = World::new();
    let mut ends = [0; 2];
    for mode in MODES {
        for switches in 0..16 {
            for privilege in PRIVILEGES {
                let walker = Guest { registers: registers(mode, switches), paging: PAGING, privilege };
                for rights in 0..64_u64 {
                    let bits = |nth: u64| 1 | rights >> nth & 1 << 1 | rights >> nth & 1 << 2 | 0x20;
                    let no = |nth: u32| (rights >> nth & 1) << 63;
                    let (upper, leaf) = (bits(0) | no(0), bits(2) | no(3));
                    for access in ALL {
                        let (mut words, va) = chain(&world, &walker, upper, leaf);
                        let done = compare(&mut world, &mut words, &walker, va, access);
                        ends[usize::from(done.is_err())] += 1;
                    }
                }
            }
        }
    }
    ends
}

#[test]
fn each_combination_of_rights_is_what_the_manual_has() {
    let [allowed, refused] = each_combination();
    assert!(allowed > 5000 && refused > 5000, "{allowed} {refused}");
}

/// A word that may be an entry of eight bytes, or two of four.
fn word(rng: &mut Rng, is_short: bool) -> u64 {
    if is_short {
        return half(rng) << 32 | half(rng);
    }
    let frame = match rng.u32(..16) {
        0 => rng.u64(..1 << 40),
        1 => ALIAS.0 + rng.u64(..ALIASES),
        _ => rng.u64(..FRAMES),
    };
    let some = |rng: &mut Rng, bits: u64| if rng.u8(..3) == 0 { rng.u64(..) & bits } else { bits };
    let is_leaf = rng.u8(..3) == 0;
    let aligned = rng.u64(..64) << 30;
    let address = if is_leaf && rng.bool() { aligned } else { frame << 12 };
    let word = address | some(rng, if is_leaf { 0xe7 } else { 0x27 }) | rng.u64(..) & 0x18;
    match rng.u8(..24) {
        0..=3 => word ^ 1 << rng.u32(..64),
        4 => 0,
        5 => rng.u64(..),
        _ => word,
    }
}

fn half(rng: &mut Rng) -> u64 {
    let frame = if rng.u8(..16) == 0 { rng.u64(..1 << 20) } else { rng.u64(..FRAMES) };
    let bits = match rng.u8(..4) {
        0 => 0xe7,
        _ => 0x27,
    };
    let bits = if rng.u8(..3) == 0 { rng.u64(..) & bits } else { bits };
    let large = rng.u64(..1 << 10) << 22 | (rng.u64(..1 << 10) << 12) * u64::from(rng.u8(..4) == 0);
    let address = if bits & 0x80 != 0 && rng.bool() { large } else { frame << 12 };
    match rng.u8(..24) {
        0 | 1 => (address | bits) ^ 1 << rng.u32(..32),
        2 => 0,
        3 => u64::from(rng.u32(..)),
        _ => address | bits,
    }
}

fn address(rng: &mut Rng, registers: &GuestRegisters) -> u64 {
    let offset = rng.u64(..PAGE_SIZE);
    let pick = |rng: &mut Rng, all: &[u64]| all[rng.usize(..all.len())];
    if registers.cr4 & PAE == 0 {
        let index = |rng: &mut Rng| pick(rng, &[0, 1, 511, 512, 1022, 1023]);
        return index(rng) << 22 | index(rng) << 12 | offset;
    }
    let mut va = offset;
    let levels = if registers.efer & LMA == 0 {
        2
    } else if registers.cr4 & LA57 == 0 {
        4
    } else {
        5
    };
    for level in 0..levels {
        va |= pick(rng, &[0, 1, 511]) << (12 + 9 * level);
    }
    if levels == 2 {
        return va | rng.u64(..4) << 30;
    }
    let unused = 64 - (12 + 9 * levels);
    ((va << unused) as i64 >> unused) as u64
}

/// Worlds of random words, and accesses in each. Returns how they ended: by error code, or allowed.
fn random(mode: (u64, u64), seeds: u64) -> BTreeMap<Option<u32>, u32> {
    let mut ends = BTreeMap::new();
    for seed in 0..seeds {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new();
        let mut words = Words::new();
        let is_short = mode.0 & PAE == 0;
        for (frame, entry) in (0..NOWHERE).flat_map(|frame| [0, 1, 255, 256, 511].map(|entry| (frame, entry)))
        {
            let word = word(&mut rng, is_short);
            world.put(frame, entry, word);
            words.insert(frame << 12 | entry << 3, word);
        }
        for _ in 0..48 {
            let pse = if rng.u8(..4) == 0 { PSE } else { 0 };
            let registers = registers((mode.0 ^ pse, mode.1), rng.u64(..));
            let paging = GuestPaging {
                physical_bits: [46, 52, 40, 36, 32][rng.usize(..5)],
                large_1g: rng.bool(),
                reserves_global: rng.bool(),
            };
            let walker = Guest { registers, paging, privilege: PRIVILEGES[rng.usize(..3)] };
            let (va, access) = (address(&mut rng, &registers), ALL[rng.usize(..3)]);
            let end = compare(&mut world, &mut words, &walker, va, access).err();
            *ends.entry(end.map(|code| code & 0b1001)).or_default() += 1;
        }
    }
    ends
}

#[test]
fn random_tables_of_each_mode_are_walked_as_the_manual_has_it() {
    for mode in MODES {
        let ends = random(mode, 24);
        let missing = [None, Some(0), Some(1), Some(9)].into_iter().find(|end| !ends.contains_key(end));
        assert_eq!(missing, None, "{mode:x?}: {ends:?}");
    }
}

/// Changes each bit, and each pair of bits, of a chain to each level.
fn bits(mode: (u64, u64)) {
    let mut rng = Rng::with_seed(1);
    let (size, lowest_shift) = if mode.0 & PAE == 0 { (4, 10) } else { (8, 9) };
    for switches in 0..8_u64 {
        for leaf in 1..=5 {
            for used in [0, 0x60] {
                let paging = GuestPaging {
                    physical_bits: [46, 52, 40, 36, 32][(switches + leaf) as usize % 5],
                    large_1g: switches & 1 == 0,
                    reserves_global: switches & 2 == 0,
                };
                let without_pse = if switches & 4 == 0 { 0 } else { mode.0 & PSE };
                let mut registers = registers((mode.0 ^ without_pse, mode.1), 0);
                registers.cr3 = ROOT << 12;
                registers.pdptes = [ROOT << 12 | 1; 4];
                let guest = Guest { registers, paging, privilege: Privilege::User };
                // PAE's root entries are in registers.
                let levels = guest.levels().min(if mode == MODES[1] { 2 } else { 5 });
                if leaf > u64::from(levels) {
                    continue;
                }
                let (mut chain, mut world) = (Chain::new(), World::new());
                let mut at = ROOT << 12;
                for level in (leaf..=u64::from(levels)).rev() {
                    let place = at + size * 3;
                    at = (16 + level) << 12;
                    let page = 1 << (12 + lowest_shift * (level - 1)).min(30);
                    let is_large = u64::from(level > 1) << 7;
                    chain.push((place, if level == leaf { page | 7 | is_large | used } else { at | 0x27 }));
                }
                let va =
                    (0..u64::from(levels)).map(|nth| 3 << (12 + lowest_shift * nth)).sum::<u64>() | 0x123;
                each_change(&chain, 8 * size as u32, 2 * switches + used / 0x60, &mut rng, |changed, rng| {
                    let random = self::registers((0, 0), rng.u64(..));
                    let registers = GuestRegisters {
                        cr0: random.cr0,
                        cr4: registers.cr4 | random.cr4,
                        efer: registers.efer | random.efer,
                        ..registers
                    };
                    let guest = Guest { registers, privilege: PRIVILEGES[rng.usize(..3)], ..guest };
                    let mut words = write(&world, changed, size);
                    let _ = compare(&mut world, &mut words, &guest, va, ALL[rng.usize(..3)]);
                });
            }
        }
    }
}

#[test]
fn each_bit_of_a_guests_tables_acts_as_the_manual_has_it() {
    MODES.into_iter().for_each(bits);
}

#[test]
fn each_bit_of_roots_in_registers_acts_as_the_manual_has_it() {
    for (mode, nth) in MODES.into_iter().flat_map(|mode| (0..64 * 64).map(move |nth| (mode, nth))) {
        let bits = 1 << (nth & 63) | 1_u64 << (nth >> 6);
        let mut registers = registers(mode, 0b1111);
        registers.cr3 ^= bits & !(1 << 63);
        registers.pdptes[nth as usize & 3] ^= bits;
        let guest = Guest { registers, paging: PAGING, privilege: Privilege::User };
        let table = GuestTable::new(&registers, PAGING, Privilege::User);
        assert_eq!(table.err(), (!guest.loads()).then_some(NoTable::Reserved), "{guest:x?}");
    }
}

#[test]
fn registers_say_which_table_there_is() {
    let table = |registers: &GuestRegisters, privilege| GuestTable::new(registers, PAGING, privilege);
    let long = registers(MODES[2], 0b1111);
    let off = GuestRegisters { cr0: WP, ..long };
    assert_eq!(table(&off, Privilege::User), Err(NoTable::PagingOff));
    // Reserved bits of CR3 in long mode; of PDPTEs, where they are present.
    assert_eq!(table(&GuestRegisters { cr3: 1 << 46, ..long }, Privilege::User), Err(NoTable::Reserved));
    let pae = registers(MODES[1], 0);
    for bit in [1, 2, 5, 8, 46, 52, 63] {
        let with = |entry| GuestRegisters { pdptes: [entry, 0, 0, 0], ..pae };
        assert_eq!(table(&with(1 << bit | 1), Privilege::User), Err(NoTable::Reserved), "bit {bit}");
        assert!(table(&with(1 << bit), Privilege::User).is_ok(), "bit {bit}, not present");
    }
    // A register bit that matters for an access makes another table; other bits do not.
    let [user, kernel, with_ac] = PRIVILEGES.map(|privilege| table(&long, privilege).unwrap());
    assert!(user != kernel && kernel != with_ac);
    let without = |bit: u64| GuestRegisters { cr4: long.cr4 & !bit, ..long };
    assert_eq!(
        table(&without(SMAP), Privilege::Supervisor).unwrap(),
        table(&without(SMAP), PRIVILEGES[2]).unwrap()
    );
    assert_eq!(table(&GuestRegisters { cr0: PG, ..long }, Privilege::User).unwrap(), user);
    assert_ne!(table(&GuestRegisters { cr0: PG, ..long }, Privilege::Supervisor).unwrap(), kernel);
    let by_pcid = |pcid: u64| GuestRegisters { cr4: long.cr4 | PCIDE, cr3: long.cr3 | pcid, ..long };
    assert_eq!(table(&by_pcid(7), Privilege::User).unwrap().pcid(), 7);
    assert_ne!(table(&by_pcid(7), Privilege::User), table(&by_pcid(8), Privilege::User));
    // Addresses that the processor refuses before it reads a table.
    assert_eq!(user.access(Gva(1 << 47), Access::Read), None);
    assert!(
        user.access(Gva((1 << 47) - 1), Access::Read).is_some()
            && user.access(Gva(!0), Access::Read).is_some()
    );
    let five = table(&registers(MODES[3], 0), Privilege::User).unwrap();
    assert!(
        five.access(Gva(1 << 47), Access::Read).is_some()
            && five.access(Gva(1 << 56), Access::Read).is_none()
    );
    let short = table(&registers(MODES[0], 0), Privilege::User).unwrap();
    assert!(
        short.access(Gva(!0 >> 32), Access::Read).is_some()
            && short.access(Gva(1 << 32), Access::Read).is_none()
    );
}

#[test]
fn root_entries_in_registers_do_not_change_with_memory() {
    let mut world = World::new();
    let walker =
        Guest { registers: registers(MODES[1], 0), paging: PAGING, privilege: Privilege::Supervisor };
    let (_, va) = chain(&world, &walker, 7, 7);
    let table = GuestTable::new(&walker.registers, PAGING, walker.privilege).unwrap();
    // CR3 names the page of the directory here: its entries are not read again.
    let access = |va| table.access(Gva(va), Access::Read).unwrap();
    assert_eq!(world.walk(&table, access(va)).unwrap().gfn, Gfn(33));
    assert_eq!(world.walk(&table, access(0xc000_0000 + va)).unwrap().gfn, Gfn(33));
    assert_eq!(world.told(&table, access(0x8000_0000 + va)).code, 0, "not present");
    assert_eq!(world.told(&table, access(0x4000_0000 + va)).code, 0);
}

#[test]
fn tables_that_loop_or_are_nowhere_give_an_answer() {
    let mut world = World::new();
    for mode in MODES {
        let registers = registers(mode, 0);
        let table = GuestTable::new(&registers, PAGING, Privilege::Supervisor).unwrap();
        // Each entry leads back to its own table: the walk ends at the last level, in that very page.
        let entry = if mode.0 & PAE == 0 { (ROOT << 12 | 7) << 32 | ROOT << 12 | 7 } else { ROOT << 12 | 7 };
        (0..512).for_each(|nth| world.put(ROOT, nth, entry));
        let access = table.access(Gva(0x7654_3210), Access::Write).unwrap();
        let access =
            if mode == MODES[1] { table.access(Gva(0x3654_3210), Access::Write).unwrap() } else { access };
        assert_eq!(world.walk(&table, access).unwrap().gfn, Gfn(ROOT));
        // Beyond all memslots.
        let entry =
            if mode.0 & PAE == 0 { (0xf_0000 << 12 | 7) << 32 | 0xf_0000 << 12 | 7 } else { 1 << 40 | 7 };
        (0..512).for_each(|nth| world.put(ROOT, nth, entry));
        let fault = world.fault(&table, access);
        assert_eq!((fault.why, table.injection(&fault).code), (Refusal::NoMemory, 0b1011), "{mode:x?}");
    }
}
