//! The texts of errors and values, word by word: a message is part of the interface. Names that the command prints must
//! differ, and a debugger's line must identify its value.

use crate::common::identity::Identity;
use slat::notify::plan::Edit;
use slat::notify::{Again, Both, NoPages};
use slat::slots::{Limits, Rule, SlotError, SlotMap};
use slat::table::NoMemory;
use slat::table::formats::Ept4;
use slat::*;
use std::collections::BTreeSet;
use std::fmt::Debug;

#[test]
fn a_refused_memslot_says_which_rule_it_broke() {
    let old = Slot { readonly: true, ..Slot::new(SlotId(3), Gfn(16), 16, Hva(0x7000)) };
    let gpas = Span::new(Gpa(0x1000), Gpa(0x3000));
    let cases = [
        (Rule::Id { limit: 512 }, 22, "this VM's ids are below 512"),
        (Rule::UnknownFlags(0x40), 22, "unknown flags 0x40"),
        (Rule::Size, 22, "its size is not a multiple of 4 KiB"),
        (Rule::Empty, 22, "it has no pages"),
        (Rule::GuestAddress, 22, "its guest address is not a multiple of 4 KiB"),
        (Rule::HostAddress(Hva(0x123)), 22, "host address 0x123 is unaligned or reaches out of bounds"),
        (Rule::Wraps, 22, "it reaches past the last guest address"),
        (Rule::TooLong, 22, "it has more than 2147483647 pages"),
        (Rule::Missing, 22, "there is none of this id"),
        (Rule::Exists, 17, "there is one of this id"),
        (
            Rule::Fixed(old),
            22,
            "it is 0x10000..0x20000 at host address 0x7000, read-only; size, host address, permissions and memory type cannot change",
        ),
        (Rule::Overlaps(old), 17, "it overlaps memslot 3 at 0x10000..0x20000"),
        (Rule::Reach(Gfn(0x100)), 22, "guest addresses end at 0x100000"),
        (Rule::NoMemory, 12, "out of memory for memslots"),
    ];
    for (rule, errno, text) in cases {
        let error = SlotError { id: SlotId(7), gpas, rule };
        assert_eq!(error.to_string(), format!("memslot 7 at 0x1000..0x3000: {text}"));
        assert_eq!(error.errno(), errno, "{text}");
    }
    let nowhere = SlotError { id: SlotId(7), gpas: Span::new(Gpa(0), Gpa(0)), rule: Rule::Missing };
    assert_eq!(nowhere.to_string(), "memslot 7: there is none of this id");
}

#[test]
fn the_other_errors_say_what_is_the_matter() {
    let cases = [
        (HostError::Fault.to_string(), "the host maps nothing there for this access"),
        (FaultError::from(HostError::NoMemory).to_string(), "the host is out of memory"),
        (HostError::Poisoned.to_string(), "the host's memory is broken there"),
        (HostError::Io.to_string(), "the host could not read the page back"),
        (HostError::Pending.to_string(), "the page is on its way to the host"),
        (HostError::NeedsPage.to_string(), "the VMM has to provide the page"),
        (DirtyError::NoRing.to_string(), "this VM has no dirty rings"),
        (DirtyError::NoSuchVcpu(VcpuId(9)).to_string(), "vCPU 9: this VM has fewer"),
        (DirtyError::NoMemory.to_string(), "no memory to note what is dirty"),
        (Again.to_string(), "it would have to wait: try again"),
    ];
    for (text, expected) in cases {
        assert_eq!(text, expected);
    }
    assert_eq!(FaultError::NoMemory.to_string(), NoMemory.to_string());
    assert_eq!(DirtyError::NoMemory.errno(), 12);
}

#[test]
fn no_two_reasons_nor_edits_share_a_name() {
    let reasons: BTreeSet<&str> = Reason::ALL.into_iter().map(Reason::name).collect();
    assert_eq!(reasons.len(), Reason::ALL.len());
    let edits = [Edit::Nothing, Edit::DropWrite, Edit::Replace(Pfn(1)), Edit::Split, Edit::Zap];
    let edits = edits.map(Edit::name);
    assert_eq!(edits.iter().collect::<BTreeSet<_>>().len(), edits.len());
}

#[test]
fn levels_and_permissions_are_written_as_people_do() {
    let levels = [Level::K4, Level::M2, Level::G1, Level::G1.up()].map(|level| format!("{level:?}"));
    assert_eq!(levels, ["4K", "2M", "1G", "level 4"]);
    let perms = [Perms::RWX, Perms::RWX.without(Perms::WRITE), Perms::RWX.without(Perms::RWX)];
    assert_eq!(perms.map(|perms| format!("{perms:?}")), ["rwx", "r-x", "---"]);
}

#[test]
fn a_debugger_sees_which_one_it_is() {
    fn shows(value: &impl Debug, what: &str) {
        let text = format!("{value:?}");
        assert!(text.contains(what), "{what} is not in: {text}");
    }
    let mut idle = Idle::take().unwrap();
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    let vm: Vm<Ept4, _> = Vm::builder(Identity::default()).vcpus(2).dirty_log(ring).build().unwrap();
    let slot = Slot::new(SlotId(5), Gfn(0), 8, Hva(1 << 40)).log_dirty();
    vm.memory()
        .commit(&mut idle, |tx| {
            tx.create(slot)?;
            assert!(!tx.is_empty());
            shows(tx, "Transaction");
            Ok(())
        })
        .unwrap();
    let vcpu = vm.vcpu(VcpuId(1)).unwrap();
    assert_eq!(vcpu.id(), VcpuId(1));
    shows(&vcpu, "VcpuId(1)");
    shows(&vm, "Vm");
    let slots = vm.memory();
    let snapshot = slots.snapshot(&mut idle);
    assert!(!snapshot.is_empty());
    shows(&snapshot, &format!("{:?}", snapshot.generation()));
    drop(snapshot);
    shows(&vm.memory().shared(&mut idle), Ept4::NAME);
    shows(&vm.memory().write_protect(&mut idle, Span::sized(Gfn(0), 1)), "FlushDebt");
    let harvest = vm.harvest_ring(&mut idle, VcpuId(1)).unwrap();
    shows(&harvest, "Harvest");
    harvest.commit();
    shows(&Both(&mut NoPages, &mut NoPages), "Both");
    let slots = SlotMap::new(Limits::default());
    assert!(slots.is_empty());
    shows(&slots, "len: 0");
}
