//! A host that gives, lends and frees frames against the contract.

use crate::Case;
use crate::machine::{hvas, page};
use slat::oracle::Rule::*;
use slat::*;
use std::sync::atomic::Ordering::Relaxed;

/// Makes the VM ask for table pages, until a report stops it.
fn need_tables(fixture: &mut crate::machine::Fixture<'_>) {
    fixture.tries(|fixture| {
        let mut vcpu = fixture.vm.vcpu(VcpuId(0)).unwrap();
        for table in 2..64 {
            fixture.vm.host().set(table << 9, page(0x2_0000 + table));
            let fault = Fault { gpa: Gfn(table << 9).gpa(), access: Access::Read };
            let _ = vcpu.fault(fixture.idle, fault).unwrap();
        }
    });
}

pub const CASES: &[Case] = &[
    ("a frame backs two addresses", &[(TwoOwners, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if !wrong {
            fixture.change(5, Why::Migrate, |host| host.set(5, page(0x99)));
            fixture.ask(5, Access::Read);
        }
        fixture.set(6, page(0x9005));
        fixture.ask(6, Access::Read);
    }),
    ("a guest gets a table page", &[(TablePage, "Host::lookup")], |fixture, wrong| {
        let lent = fixture.vm.memory().root().0;
        fixture.set(5, page(if wrong { lent } else { lent + 0x1000 }));
        fixture.ask(5, Access::Read);
    }),
    ("a guest's page is lent for tables", &[(LentGuestPage, "TableMemory::lend")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if !wrong {
            fixture.change(5, Why::Unmap, |host| host.set(5, None));
        }
        *fixture.vm.host().lends.lock().unwrap() = Some(Pfn(0x9005));
        need_tables(fixture);
    }),
    ("a page is lent twice", &[(LentTwice, "TableMemory::lend")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let root = fixture.vm.memory().root();
        *fixture.vm.host().lends.lock().unwrap() = wrong.then_some(root);
        need_tables(fixture);
    }),
    ("a lent page is not aligned", &[(LentMisaligned, "TableMemory::lend")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        *fixture.vm.host().lends_beside.lock().unwrap() = if wrong { 8 } else { 0 };
        need_tables(fixture);
    }),
    ("a table page is seen at another address", &[(LentElsewhere, "TableMemory::lend")], |fixture, wrong| {
        let host = fixture.vm.host();
        host.at_is_wrong.store(wrong, Relaxed);
        fixture.tries(|fixture| {
            let _ = fixture.vm.tables().lend(1);
        });
        host.at_is_wrong.store(false, Relaxed);
    }),
    ("a frame is freed that a guest uses", &[(FreedInUse, "Oracle::frees")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if !wrong {
            fixture.change(5, Why::Unmap, |host| host.set(5, None));
        }
        fixture.vm.oracle().frees(Pfn(0x9005));
    }),
    ("a frame of a protected page is freed", &[(FreedInUse, "Oracle::frees")], |fixture, wrong| {
        fixture.ask(5, Access::Write);
        let why = if wrong { Why::Protect } else { Why::Clear };
        fixture.change(5, why, |_| {});
        fixture.vm.oracle().frees(Pfn(0x9005));
    }),
    ("a told page is freed before its flush", &[(FreedInUse, "Oracle::frees")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let vm = fixture.vm;
        vm.change_pages(fixture.idle, hvas(5), PageWhy::Reclaim, |idle, pages| {
            vm.host().set(5, None);
            pages.changed(idle, hvas(5), None);
            if !wrong {
                pages.flush(idle);
            }
            vm.oracle().frees(Pfn(0x9005));
        });
    }),
    ("a frame is too large for the format", &[(BadFrame, "Host::resolve")], |fixture, wrong| {
        fixture.vm.host().sleeps.store(true, Relaxed);
        fixture.set(5, page(if wrong { 1 << 45 } else { 1 << 30 }));
        fixture.ask(5, Access::Write);
    }),
    ("a large page's frame is not aligned", &[(BadFrame, "Host::resolve")], |fixture, wrong| {
        fixture.vm.host().sleeps.store(true, Relaxed);
        let pfn = if wrong { 513 } else { 512 };
        fixture.set(0, HostPage { level: Level::M2, ..page(pfn) });
        fixture.ask(0, Access::Write);
    }),
];
