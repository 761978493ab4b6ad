//! A host that changes its table against the contract.

use crate::Case;
use crate::machine::{Fixture, RAM, hvas, page};
use slat::oracle::Rule::*;
use slat::*;
use std::mem::forget;
use std::sync::atomic::Ordering::Relaxed;

const READ_ONLY: HostPage = HostPage { writable: false, ..HostPage::PLAIN };

fn read_only(pfn: u64) -> HostPage {
    HostPage { pfn: Pfn(pfn), ..READ_ONLY }
}

fn large(pfn: u64) -> HostPage {
    HostPage { level: Level::M2, ..page(pfn) }
}

/// A change of page 5, which the guest accesses before and afterwards. If `wrong`, it ends before the table changes.
fn ends_too_early(fixture: &mut Fixture<'_>, wrong: bool, (why, access): (Why, Access), now: HostPage) {
    fixture.ask(5, access);
    let change = fixture.vm.invalidate(hvas(5), why).apply(fixture.idle).settle();
    if wrong {
        drop(change);
        fixture.ask(5, access);
        fixture.set(5, now);
    } else {
        fixture.set(5, now);
        drop(change);
    }
    fixture.ask(5, access);
}

pub const CASES: &[Case] = &[
    ("a page moves, and the quick answer shows it", &[(Moved, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(5, page(0x99));
        } else {
            fixture.change(5, Why::Migrate, |host| host.set(5, page(0x99)));
        }
        fixture.ask(5, Access::Read);
    }),
    ("a page moves, and the slow answer shows it", &[(Moved, "Host::resolve")], |fixture, wrong| {
        fixture.vm.host().sleeps.store(true, Relaxed);
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(5, page(0x99));
        } else {
            fixture.change(5, Why::Migrate, |host| host.set(5, page(0x99)));
        }
        fixture.ask(5, Access::Read);
    }),
    ("two pages change places", &[(Moved, "Host::lookup"), (Moved, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        fixture.ask(6, Access::Read);
        let swap = |host: &crate::machine::Machine| {
            host.set(5, page(0x9006));
            host.set(6, page(0x9005));
        };
        if wrong {
            // Read-only, so that no frame has two owners meanwhile.
            fixture.set(5, read_only(0x9006));
            fixture.set(6, read_only(0x9005));
        } else {
            let both = Span::sized(hvas(5).start, 2 * PAGE_SIZE);
            fixture.vm.change(fixture.idle, both, Why::Migrate, |_| swap(fixture.vm.host()));
        }
        fixture.ask(5, Access::Read);
        fixture.ask(6, Access::Read);
    }),
    ("a page is removed", &[(Removed, "Host::resolve")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(5, None);
        } else {
            fixture.change(5, Why::Unmap, |host| host.set(5, None));
        }
        fixture.ask(5, Access::Read);
    }),
    ("write permission is withdrawn", &[(WriteWithdrawn, "Host::resolve")], |fixture, wrong| {
        fixture.ask(5, Access::Write);
        if wrong {
            fixture.set(5, read_only(0x9005));
        } else {
            fixture.change(5, Why::Protect, |host| host.set(5, read_only(0x9005)));
        }
        fixture.ask(5, Access::Write);
    }),
    ("execute permission is withdrawn", &[(ExecuteWithdrawn, "Host::resolve")], |fixture, wrong| {
        let no_execute = HostPage { execute: false, ..page(0x9005) };
        fixture.ask(5, Access::Fetch);
        if wrong {
            fixture.set(5, no_execute);
        } else {
            fixture.change(5, Why::Migrate, |host| host.set(5, no_execute));
        }
        fixture.ask(5, Access::Fetch);
    }),
    ("a page gets another memory type", &[(TypeChanged, "Host::lookup")], |fixture, wrong| {
        let device = HostPage { memory: MemoryType::Device, ..page(0x9005) };
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(5, device);
        } else {
            fixture.change(5, Why::Migrate, |host| host.set(5, device));
        }
        fixture.ask(5, Access::Read);
    }),
    ("a part of a large page moves", &[(Moved, "Host::lookup")], |fixture, wrong| {
        (0..512).for_each(|gfn| fixture.set(gfn, large(0x8000 + gfn)));
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(6, page(0x99));
        } else {
            fixture.change(6, Why::Migrate, |host| host.set(6, page(0x99)));
        }
        fixture.ask(6, Access::Read);
    }),
    ("a large page replaces a small one", &[(Moved, "Host::lookup")], |fixture, wrong| {
        let all = Span::sized(RAM, 2 << 20);
        fixture.ask(5, Access::Read);
        let collapse = || (0..512).for_each(|gfn| fixture.vm.host().set(gfn, large(0x8000 + gfn)));
        if wrong {
            collapse();
        } else {
            fixture.vm.change(fixture.idle, all, Why::Migrate, |_| collapse());
        }
        fixture.ask(6, Access::Read);
    }),
    ("a change ends before the table changes", &[(EndedTooEarly, "Host::lookup")], |fixture, wrong| {
        ends_too_early(fixture, wrong, (Why::Migrate, Access::Read), page(0x99));
    }),
    ("a protection ends before the table changes", &[(EndedTooEarly, "Host::resolve")], |fixture, wrong| {
        ends_too_early(fixture, wrong, (Why::WriteProtect, Access::Write), read_only(0x9005));
    }),
    ("a change is cancelled, and the table changes", &[(Cancelled, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        drop(fixture.vm.invalidate(hvas(5), Why::Migrate));
        if wrong {
            fixture.set(5, page(0x99));
        }
        fixture.ask(5, Access::Read);
    }),
    ("the table changes before the change", &[(ChangedBefore, "Vm::invalidate")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        if wrong {
            fixture.set(5, page(0x99));
        }
        fixture.change(5, Why::Migrate, |host| host.set(5, page(0x99)));
        fixture.ask(5, Access::Read);
    }),
    ("a large page changes before its change", &[(ChangedBefore, "Vm::invalidate")], |fixture, wrong| {
        let all = Span::sized(RAM, 2 << 20);
        (0..512).for_each(|gfn| fixture.set(gfn, large(0x8000 + gfn)));
        fixture.ask(5, Access::Read);
        let moves = || (0..512).for_each(|gfn| fixture.vm.host().set(gfn, large(0xa000 + gfn)));
        if wrong {
            moves();
        }
        fixture.vm.change(fixture.idle, all, Why::Migrate, |_| moves());
        fixture.ask(5, Access::Read);
    }),
    ("the sixth page changes before the change", &[(ChangedBefore, "Vm::invalidate")], |fixture, wrong| {
        (0..8).for_each(|gfn| fixture.ask(gfn, Access::Read));
        let moves = || fixture.vm.host().set(5, page(0x99));
        if wrong {
            moves();
        }
        fixture.vm.change(fixture.idle, Span::sized(RAM, 8 * PAGE_SIZE), Why::Migrate, |_| moves());
        fixture.ask(5, Access::Read);
    }),
    ("the table changes before the flush", &[(ChangedBeforeFlush, "Applied::settle")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let (vm, change) = (fixture.vm, fixture.vm.invalidate(hvas(5), Why::Migrate));
        let applied = change.apply(fixture.idle);
        if wrong {
            vm.host().set(5, page(0x99));
        }
        let change = applied.settle();
        vm.host().set(5, page(0x99));
        drop(change);
        fixture.ask(5, Access::Read);
    }),
    ("one of two pages is told", &[(NotTold, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        fixture.ask(6, Access::Read);
        let (vm, both) = (fixture.vm, Span::sized(hvas(5).start, 2 * PAGE_SIZE));
        vm.change_pages(fixture.idle, both, PageWhy::Reclaim, |idle, pages| {
            for gfn in [5, 6] {
                vm.host().set(gfn, page(0x90 + gfn));
                if gfn == 5 || !wrong {
                    pages.changed(idle, hvas(gfn), None);
                }
            }
        });
        fixture.ask(5, Access::Read);
        fixture.ask(6, Access::Read);
    }),
    ("a change that is told page by page tells none", &[(NotTold, "Host::lookup")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let vm = fixture.vm;
        vm.change_pages(fixture.idle, hvas(5), PageWhy::Numa, |idle, pages| {
            vm.host().set(5, page(0x99));
            if !wrong {
                pages.changed(idle, hvas(5), None);
            }
        });
        fixture.ask(5, Access::Read);
    }),
    ("a page outside of the range is told", &[(ToldOutside, "Pages::changed")], |fixture, wrong| {
        fixture.ask(6, Access::Read);
        let vm = fixture.vm;
        let announced = if wrong { hvas(5) } else { Span::sized(hvas(5).start, 2 * PAGE_SIZE) };
        // A debug build also asserts it.
        fixture.tries(|fixture| {
            vm.change_pages(fixture.idle, announced, PageWhy::Reclaim, |idle, pages| {
                pages.changed(idle, hvas(6), None);
            });
        });
    }),
    ("the page is not the one that was told", &[(ToldOther, "Host::lookup")], |fixture, wrong| {
        fixture.set(5, read_only(0x9005));
        fixture.ask(5, Access::Read);
        let vm = fixture.vm;
        vm.change_pages(fixture.idle, hvas(5), PageWhy::ChangePte, |idle, pages| {
            vm.host().set(5, read_only(if wrong { 0x98 } else { 0x99 }));
            pages.changed(idle, hvas(5), Some(read_only(0x99)));
        });
        fixture.ask(5, Access::Read);
    }),
    ("a change is leaked", &[(NeverEnded, "Vm::drop")], |fixture, wrong| {
        let change = fixture.vm.invalidate(hvas(5), Why::Unmap).apply(fixture.idle).settle();
        if wrong { forget(change) } else { drop(change) }
    }),
    ("a store is answered with a read-only page", &[(NotServed, "Host::resolve")], |fixture, wrong| {
        fixture.vm.host().answers_all.store(true, Relaxed);
        fixture.set(5, HostPage { writable: !wrong, ..page(0x9005) });
        fixture.ask(5, Access::Write);
    }),
];
