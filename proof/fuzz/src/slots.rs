//! `slots`: requests like `KVM_SET_USER_MEMORY_REGION`'s against the brute-force oracle of slat's own tests.
//!
//! Most fields come from the edges of a rule or of an existing slot. The answer must be the oracle's, to the error
//! number, and so must all look-ups afterwards.

#[path = "../../../slat/tests/engine/slots/oracle.rs"]
#[allow(dead_code, reason = "its other users use the rest")]
mod oracle;

use crate::Input;
use oracle::{Change, Limits, Oracle, PAGE, Record, Request};
use slat::slots::{self, Region};
use slat::table::formats::Npt5;
use slat::{Access, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, Slot, SlotId, SpaceId, Span, Vm};

const STEPS: usize = 200;
const SPACES: u32 = 2;
/// Lengths of which at most two slots fit without touching.
const LIMITS: Limits = Limits { ids: 300, spaces: SPACES, gfn_end: 1 << 40, hva_end: (1 << 47) - PAGE };
/// Host addresses that slots share.
const ARENA: u64 = 0x7000_0000_0000;

/// A host with nothing behind its addresses.
#[derive(Debug)]
struct Nothing;

impl Host for Nothing {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let vm = Vm::<Npt5, _>::builder(Nothing)
        .max_slots(LIMITS.ids)
        .address_spaces(SPACES as u8)
        .address_bits(52)
        .host_addresses(Span::new(Hva(0), Hva(LIMITS.hva_end)))
        .build()
        .unwrap();
    let mut idle = Idle::take().expect("one VM of this kind at a time on a thread");
    let mut oracle = Oracle::new(LIMITS);
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let request = request(&mut input, &oracle);
        let expected = oracle.set(&request);
        let Some(slots) = vm.space(SpaceId(request.space as u8)).filter(|_| request.space < SPACES) else {
            assert!(expected.is_err(), "there is no VM to ask");
            continue;
        };
        let Request { id, flags, gpa, bytes, hva, .. } = request;
        let region = Region { slot: SlotId(id), flags, gpa: Gpa(gpa), bytes, hva: Hva(hva) };
        let said = slots.set(&mut idle, region).map_err(|error| error.errno());
        let expected = expected.map(|change| in_slats_words(id, change)).map_err(oracle::Rule::errno);
        assert_eq!(said, expected, "{request:x?}");
        compare(&vm, &mut idle, &oracle, &request);
    }
}

fn in_slats_words(id: u32, change: Change) -> slots::Change {
    match change {
        Change::Created => slots::Change::Created,
        Change::Deleted(old) => slots::Change::Deleted(slot(id, old)),
        Change::Moved(old) => slots::Change::Moved(slot(id, old)),
        Change::Flags(old) => slots::Change::Flags(slot(id, old)),
        Change::Nothing => slots::Change::Nothing,
    }
}

fn slot(id: u32, Record { gfn, pages, hva, flags }: Record) -> Slot {
    let (readonly, log_dirty) = (flags & oracle::READONLY != 0, flags & oracle::LOG_DIRTY != 0);
    Slot { readonly, log_dirty, ..Slot::new(SlotId(id), Gfn(gfn), pages, Hva(hva)) }
}

/// Compares all slots, and every kind of look-up around the range of the request.
fn compare(vm: &Vm<Npt5, Nothing>, idle: &mut Idle, oracle: &Oracle, request: &Request) {
    let slots = vm.space(SpaceId(request.space as u8)).unwrap();
    let space = request.space;
    let snapshot = slots.snapshot(idle);
    let expected: Vec<_> = oracle.by_gfn(space).into_iter().map(|(id, record)| slot(id, record)).collect();
    assert!(snapshot.iter().eq(expected.iter().copied()), "slots in order");
    assert_eq!(snapshot.len(), expected.len());
    assert_eq!(
        snapshot.get(SlotId(request.id)),
        expected.iter().find(|slot| slot.id.0 == request.id).copied()
    );
    let (gfn, pages) = (request.gpa / PAGE, request.bytes / PAGE);
    for gfn in
        [gfn, gfn.wrapping_sub(1), gfn.saturating_add(pages), gfn.saturating_add(pages).wrapping_sub(1)]
    {
        let expected = oracle.find(space, gfn).map(|(id, record)| slot(id, record));
        assert_eq!(snapshot.find(Gfn(gfn)), expected, "the slot of {gfn:#x}");
    }
    let end = request.hva.saturating_add(request.bytes);
    for (start, end) in [
        (request.hva, end),
        (request.hva.saturating_add(1), end.saturating_add(1)),
        (end.saturating_sub(1), end),
    ] {
        let mut behind = Vec::new();
        snapshot.over_hvas(Span::new(Hva(start), Hva(end)), |gfns| behind.push((gfns.start.0, gfns.end.0)));
        behind.sort_unstable();
        assert_eq!(behind, oracle.over_hvas(space, start, end), "frames behind {start:#x}..{end:#x}");
    }
}

/// Draws a request that is probably allowed, sometimes with an invalid field.
fn request(input: &mut Input<'_>, oracle: &Oracle) -> Request {
    let space = input.below(u64::from(SPACES)) as u32;
    let id = input.below(24) as u32;
    let there = oracle.slots(space).get(&id).copied();
    let nth = input.below(24) as usize;
    let neighbour = oracle.slots(space).values().nth(nth).copied();
    let pages = input.pick(&[1, 2, 7, 8, 64, 512, 513, oracle::MOST_PAGES]);
    let flags = input.below(4) as u32;
    let (gfn, hva) = (place(input, neighbour, pages), ARENA + input.below(64) * PAGE);
    let new = Request { space, id, flags, gpa: gfn.wrapping_mul(PAGE), bytes: pages * PAGE, hva };
    let mut request = match there {
        None => new,
        Some(old) => {
            let same = Request { bytes: old.pages * PAGE, hva: old.hva, ..new };
            match input.below(8) {
                0..3 => Request { bytes: 0, ..new },
                3..6 => Request { flags: old.flags ^ (flags & oracle::LOG_DIRTY), ..same },
                6 => Request { gpa: old.gfn * PAGE, ..same },
                _ => new,
            }
        }
    };
    if input.below(4) == 3 {
        let edge =
            input.pick(&[0, 1, PAGE - 1, PAGE, LIMITS.hva_end, u64::MAX, 1 << 52, u64::MAX - PAGE + 1]);
        match input.below(6) {
            0 => request.id = input.pick(&[LIMITS.ids - 1, LIMITS.ids, u32::MAX]),
            1 => request.space = input.pick(&[SPACES, u32::MAX]),
            2 => request.flags ^= 1 << input.below(32),
            3 => request.gpa = request.gpa.wrapping_add(edge),
            4 => request.bytes = request.bytes.wrapping_add(edge),
            _ => request.hva = request.hva.wrapping_add(edge),
        }
    }
    request
}

/// Draws a frame beside an existing slot, or a page into it, or at an end of the guest's addresses.
fn place(input: &mut Input<'_>, neighbour: Option<Record>, pages: u64) -> u64 {
    let last = LIMITS.gfn_end.saturating_sub(pages);
    let Some(there) = neighbour else {
        return input.pick(&[0, 8, 64, 512, 1 << 20, last, last + 1]);
    };
    match input.below(8) {
        0..3 => there.end(),
        3 => there.gfn.wrapping_sub(pages),
        4 => there.end() - 1,
        5 => there.gfn.wrapping_sub(pages).wrapping_add(1),
        6 => there.gfn,
        _ => there.gfn + input.below(1024),
    }
}
