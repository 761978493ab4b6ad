//! A flush debt, as its holder sees it: its range is known before it is paid, it is paid once, and an edit that takes
//! nothing owes nothing.

use crate::common::identity::Identity;
use slat::table::formats::Ept4;
use slat::*;

const PAGES: u64 = 64;

#[test]
fn a_walks_debt_says_what_it_owes_and_is_paid_once() {
    let mut idle = Idle::take().unwrap();
    let vm: Vm<Ept4, _> = Vm::builder(Identity::default()).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, Hva(1 << 40)))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..PAGES {
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap();
    }
    let paid = || vm.stats().flushes.paid;
    let before = paid();
    let range = Span::sized(Gfn(8), 16);

    let mut walk = vm.memory().shared(&mut idle);
    let debt = walk.write_protect(range);
    assert_eq!((debt.pages(), paid()), (range.len(), before));
    assert!(debt.settle());
    assert_eq!(paid(), before + 1);
    assert!(!walk.write_protect(Span::sized(Gfn(PAGES), 16)).settle(), "nothing is mapped there");
    drop(walk);
    assert_eq!(paid(), before + 1);
    // A clear W does not prove that no TLB writes: the flush is owed again, and paid where the debt is dropped.
    drop(vm.memory().write_protect(&mut idle, range));
    assert_eq!(paid(), before + 2);
    let writable = |idle: &mut Idle, gfn| {
        vm.memory().translate(idle, Gfn(gfn)).unwrap().leaf.perms.allows(Access::Write)
    };
    assert!((0..PAGES).all(|gfn| writable(&mut idle, gfn) != range.contains(Gfn(gfn))));
}
