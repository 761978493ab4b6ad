//! Where T's pages are: swapped out, gone, read-only, in no memslot; and entries that change during a walk.

use super::*;

/// A chain of EPT to a leaf at L1 frame 0x77, for L2 address 0, that no walk has used yet.
fn chain(world: &World) -> EptTable {
    for level in 0..3 {
        world.put(CHAIN[level], 0, CHAIN[level + 1] << 12 | 7);
    }
    world.put(CHAIN[3], 0, 0x77 << 12 | 6 << 3 | 7);
    ept(CHAIN[0], 4, true)
}

const LOAD: L1Access = L1Access::new(Gpa(0x123), Access::Read);
const STORE: L1Access = L1Access::new(Gpa(0x123), Access::Write);

#[test]
fn a_page_of_a_table_that_is_out_is_asked_for() {
    let mut world = World::new();
    let table = chain(&world);
    for frame in &CHAIN[..4] {
        world.set_page(*frame, OUT);
    }
    let stop = world.vm.memory().try_walk_l1(&table, STORE);
    let hva = BASE + (CHAIN[0] << 12);
    let gpa = Gfn(CHAIN[0]).gpa();
    assert_eq!(stop, Err(L1Stop::Ask { gpa, hva, access: Access::Read }), "the first of them");
    assert_eq!(world.vm.memory().look_l1(&table, LOAD.gpa), stop);
    // Each page once to be read, and once to be written.
    assert_eq!(world.walk(&table, STORE).unwrap().gfn, Gfn(0x77));
    assert_eq!(world.vm.host().resolved.load(Relaxed), 8);
    assert_eq!(world.get(CHAIN[3], 0) >> 8 & 3, 3);
}

#[test]
fn a_page_that_the_host_cannot_give_is_told_with_its_error() {
    let mut world = World::new();
    let table = chain(&world);
    let hva = BASE + (CHAIN[2] << 12);
    world.set_page(CHAIN[2], BROKEN);
    assert_eq!(world.walk(&table, LOAD), Err(L1Stop::Unreadable { hva, error: HostError::Poisoned }));
    // A page that the host resolves and never lets be read: a bounded number of attempts.
    world.set_page(CHAIN[2], NEVER);
    let gpa = Gfn(CHAIN[2]).gpa();
    assert_eq!(world.walk(&table, LOAD), Err(L1Stop::Ask { gpa, hva, access: Access::Read }));
    assert!(world.vm.host().resolved.load(Relaxed) < 32);
}

#[test]
fn a_vcpu_waits_for_a_page_of_a_table_that_is_on_its_way() {
    let mut world = World::new();
    // The leaf is a page of L1's that is present.
    let table = chain(&world);
    world.put(CHAIN[3], 0, 0x20 << 12 | 6 << 3 | 7);
    let World { idle, vm } = &mut world;
    let vm = &*vm;
    let set = |frame: u64, state| vm.host().pages[frame as usize].store(state, Relaxed);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for (frame, access) in [(CHAIN[0], STORE), (CHAIN[3], STORE), (0x20, LOAD)] {
        set(frame, LATE);
        let mut l2 = vcpu.nested(idle, table).unwrap();
        let done = l2.fault(idle, access);
        let gpa = Gfn(frame).gpa();
        let Ok(L2Next::Handled { next: Next::Leave(Leave::Pending(token)), gpa: at }) = done else {
            panic!("{frame:#x}: {done:?}")
        };
        assert_eq!(at.gfn().gpa(), gpa);
        set(frame, THERE);
        assert_eq!(vm.ready(token), 1);
        assert_eq!(l2.take_ready(), Some(token));
        let done = l2.fault(idle, access);
        assert!(
            matches!(done, Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })),
            "{frame:#x}: {done:?}"
        );
        vm.zap_all(idle).unwrap();
    }
}

#[test]
fn a_table_in_no_memslot_is_l1s_own_fault() {
    let mut world = World::new();
    let table = chain(&world);
    for nowhere in [NOWHERE, FRAMES, 1 << 30, (1 << 34) - 1] {
        world.put(CHAIN[1], 0, nowhere << 12 | 7);
        let fault = world.fault(&table, STORE);
        assert_eq!((fault.why, fault.level, fault.table), (Refusal::NoMemory, Level::M2, Some(Gfn(nowhere))));
        assert_eq!(table.injection(&fault), EptExit::Violation { gpa: STORE.gpa, qualification: 2 });
    }
    assert_eq!(world.dirty(), [0; 0], "nothing was set above");
}

#[test]
fn in_a_read_only_memslot_a_and_d_stay_clear_or_are_an_error() {
    let mut world = World::new();
    let table = chain(&world);
    world.put(CHAIN[2], 0, READ_ONLY << 12 | 7);
    world.put(READ_ONLY, 0, world.get(CHAIN[3], 0));
    let leaf = world.walk(&table, STORE).unwrap();
    assert!(!leaf.dirty && !leaf.accessed && leaf.rights.perms == Perms::RWX, "the store goes on");
    assert_eq!(world.walk(&table, LOAD).unwrap().rights.perms, Perms::RX, "a load gives no right to store");
    assert_eq!(world.get(READ_ONLY, 0) >> 8 & 3, 0);
    // RISC-V: an access fault.
    let g_stage = GStageTable::new(8 << 60 | CHAIN[0], G_STAGE).unwrap();
    world.put(CHAIN[0], 0, CHAIN[1] << 10 | 1);
    world.put(CHAIN[1], 0, READ_ONLY << 10 | 1);
    world.put(READ_ONLY, 0, 0x77 << 10 | 0x1f);
    let fault = world.fault(&g_stage, STORE);
    assert_eq!((fault.why, fault.level), (Refusal::NoMemory, Level::K4));
    assert_eq!(g_stage.injection(&fault), GuestPageFault { cause: 7, htval: 0, htinst: 0 });
    world.put(READ_ONLY, 0, 0x77 << 10 | 0xdf);
    assert!(world.walk(&g_stage, STORE).unwrap().dirty, "where both are set there is nothing to do");
}

#[test]
fn an_entry_that_changes_is_read_again_and_not_for_ever() {
    let mut world = World::new();
    let table = chain(&world);
    world.vm.host().meddles.store(3, Relaxed);
    let leaf = world.walk(&table, STORE).unwrap();
    assert!(leaf.accessed && leaf.dirty);
    assert_eq!(world.get(CHAIN[3], 0) >> 8 & 3, 3);
    let table = chain(&world);
    world.vm.host().meddles.store(u64::MAX, Relaxed);
    assert_eq!(world.walk(&table, STORE), Err(L1Stop::Retry));
}

#[test]
fn a_walk_dirties_each_table_once_and_a_look_none() {
    let mut world = World::new();
    let table = chain(&world);
    let look = world.vm.memory().look_l1(&table, LOAD.gpa).unwrap();
    assert!(
        !look.accessed && !look.dirty && look.rights.perms == Perms::RX && look.allowed.perms == Perms::RWX
    );
    assert_eq!(look.tables(), [CHAIN[0], CHAIN[1], CHAIN[2], CHAIN[3]].map(Gfn));
    assert_eq!(world.dirty(), [0; 0]);
    world.walk(&table, LOAD).unwrap();
    assert_eq!(world.dirty(), &CHAIN[..4]);
    world.clean();
    world.walk(&table, STORE).unwrap();
    assert_eq!(world.dirty(), [CHAIN[3]], "D of the leaf");
    world.clean();
    world.walk(&table, STORE).unwrap();
    assert_eq!(world.dirty(), [0; 0]);
    // A refused access sets nothing.
    let table = chain(&world);
    world.put(CHAIN[3], 0, 0x77 << 12 | 6 << 3 | 1);
    world.fault(&table, STORE);
    assert_eq!(world.dirty(), [0; 0]);
}

#[test]
fn a_table_that_links_itself_ends_at_the_lowest_level() {
    let mut world = World::new();
    let table = chain(&world);
    world.put(CHAIN[0], 0, CHAIN[0] << 12 | 7);
    let leaf = world.walk(&table, STORE).unwrap();
    assert_eq!((leaf.gfn, leaf.memory), (Gfn(CHAIN[0]), MemoryType::Uncached), "as a leaf it maps itself");
    assert_eq!(leaf.tables(), [Gfn(CHAIN[0]); 4]);
    assert_eq!((world.get(CHAIN[0], 0) >> 8 & 3, world.dirty()), (3, [CHAIN[0]].to_vec()));
}

#[test]
fn tables_are_found_behind_an_alias_and_in_wide_roots() {
    let mut world = World::new();
    for page in 0..4 {
        world.put(4 + page, 511, (0x700 + page) << 18 + 10 | 0xdf);
    }
    let table = GStageTable::new(8 << 60 | ALIAS.0 + 4, G_STAGE).unwrap();
    for page in 0..4 {
        let gpa = Gpa(page << 39 | 511 << 30 | 0x5123);
        let leaf = world.walk(&table, L1Access::new(gpa, Access::Write)).unwrap();
        assert_eq!((leaf.gfn, leaf.level), (Gfn((0x700 + page) << 18 | 5), Level::G1));
        assert_eq!(leaf.tables(), [ALIAS + 4 + page]);
    }
    let beyond = world.fault(&table, L1Access::new(Gpa(1 << 41), Access::Read));
    assert_eq!((beyond.why, beyond.table), (Refusal::NotPresent, None));
}

/// Reported stores, by frame, with the resulting word.
#[derive(Default)]
struct Told(std::sync::Mutex<Stores>);

/// The address, and the resulting word.
type Stores = Vec<(Gpa, u64)>;

impl WriteListener for Told {
    fn after(&self, _: &mut Idle, store: &TrackedStore<'_>) {
        let word = u64::from_le_bytes(store.bytes.try_into().unwrap());
        self.0.lock().unwrap().push((store.gpa, word));
    }
}

/// Returns the stores reported for a walk by a store through a chain whose second and last tables are tracked; and the
/// tables afterwards.
pub(super) fn told_of_a_walk() -> [Stores; 2] {
    let mut world = World::new();
    let table = chain(&world);
    let told = std::sync::Arc::new(Told::default());
    let tracked = [CHAIN[1], CHAIN[3]].map(Gfn);
    let World { vm, idle, .. } = &mut world;
    let trackings =
        tracked.map(|gfn| vm.memory().track_writes(idle, Span::sized(gfn, 1), told.clone()).unwrap());
    let leaf = vm.memory().walk_l1(idle, &table, STORE).unwrap();
    assert!(leaf.accessed && leaf.dirty && leaf.gfn == Gfn(0x77));
    drop(trackings);
    let now = tracked.map(|gfn| (gfn.gpa(), world.get(gfn.0, 0)));
    assert_eq!(world.walk(&table, STORE), Ok(leaf), "nothing is left to be set");
    let told = told.0.lock().unwrap().clone();
    [told, now.to_vec()]
}

#[test]
fn listeners_are_told_of_a_and_d_in_tracked_tables() {
    let [told, now] = told_of_a_walk();
    assert_eq!(told, now);
    assert_eq!(told.len(), 2);
}

#[test]
fn a_walk_that_may_not_sleep_says_which_store_is_to_be_told() {
    let mut world = World::new();
    let table = chain(&world);
    let told = std::sync::Arc::new(Told::default());
    let World { vm, idle, .. } = &mut world;
    let tracking = vm.memory().track_writes(idle, Span::sized(Gfn(CHAIN[0]), 1), told.clone()).unwrap();
    let stop = vm.memory().try_walk_l1(&table, STORE).unwrap_err();
    let L1Stop::Tracked { gpa, word } = stop else { panic!("{stop}") };
    assert_eq!(gpa, Gfn(CHAIN[0]).gpa());
    vm.memory().tell_l1_store(idle, gpa, word);
    assert_eq!(*told.0.lock().unwrap(), [(gpa, word.0)]);
    assert!(vm.memory().try_walk_l1(&table, STORE).is_ok());
    drop(tracking);
    assert_eq!(word.0, world.get(CHAIN[0], 0), "the store was made");
}
