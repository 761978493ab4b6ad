//! The kernel's own memslots, through `/dev/kvm`: the oracle must agree with the kernel.
//!
//! Acceptance and errno are compared at every step. The state cannot be read back, but it can be probed: at the end of
//! each walk the kernel gets requests that only the expected state refuses in the expected way ([`Kvm::audit`]).
//!
//! The kernel is asked only in part for the following, each for its reason:
//!
//! | exception | why |
//! |---|---|
//! | no slot of more than [`MOST`] pages is ever created | without two-dimensional paging the kernel spends about 10 bytes a page: a slot of 2³¹ − 1 pages takes 20 GiB and 20 s, or `ENOMEM`. That the size itself is fine, and one page more is not, shows where such a slot also overlaps another: `EEXIST` against `EINVAL` |
//! | how many frames and which host addresses there are is asked, not known | the guest's last frame follows the host's CPU, the last user address the kernel's version and its CPU. Both are found by bisection before the walks and are then limits like any other |
//! | an address space that the kernel does not have is `EINVAL` | `KVM_CAP_MULTI_ADDRESS_SPACE` says how many there are; with one, requests for the second are still made |
//!
//! Nothing else is excepted. Where `/dev/kvm` cannot be opened the test says so and passes; with
//! `SLAT_REQUIRE_KVM=1` in the environment it fails.

use super::oracle::{Change, LOG_DIRTY, Limits, Oracle, PAGE, Record, Request, Rule};
use super::requests::Requests;
use super::subject::{ARENA, Slat};
use super::walk::{Subject, Tally, walk};
use crate::common::kvm_device::device;
use crate::common::random::Random;
use crate::common::thorough::thorough;
use kvm_bindings::{KVM_CAP_MULTI_ADDRESS_SPACE, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm as Device, VmFd};

/// The largest slot, in pages, that a walk has the kernel create.
const MOST: u64 = 1 << 14;
const STEPS: u64 = 5_000;
const SEEDS: [u64; 8] = [1, 2, 3, 4, 5, 0x5eed, 0xdead_beef, u64::MAX];

fn errno(error: kvm_ioctls::Error) -> i32 {
    error.errno()
}

/// A VM of the kernel.
pub struct Kvm {
    vm: VmFd,
    limits: Limits,
    /// Memory that exists. The requests of walks need none: the kernel looks only when a guest does.
    mapped: Vec<u8>,
}

impl Kvm {
    fn new(device: &Device) -> Self {
        let vm = device.create_vm().expect("a VM");
        let spaces = vm.check_extension_raw(u64::from(KVM_CAP_MULTI_ADDRESS_SPACE)).max(1) as u32;
        let ids = vm.check_extension_int(Cap::NrMemslots) as u32;
        let limits = Limits { ids, spaces, gfn_end: 1 << 52, hva_end: u64::MAX };
        let mut kvm = Self { vm, limits, mapped: vec![0; 2 * PAGE as usize] };
        let page_at = |gpa, hva| Request { space: 0, id: 0, flags: 0, gpa, bytes: PAGE, hva };
        kvm.limits.gfn_end = kvm.first_refused(|page| page_at(page * PAGE, 0));
        kvm.limits.hva_end = kvm.first_refused(|page| page_at(0, page * PAGE)) * PAGE;
        kvm
    }

    /// Returns the first page number for which the kernel refuses `request`.
    fn first_refused(&mut self, request: impl Fn(u64) -> Request) -> u64 {
        let (mut accepted, mut refused) = (0, 1 << 52);
        while refused - accepted > 1 {
            let middle = accepted + (refused - accepted) / 2;
            if self.set(&request(middle)).is_ok() {
                self.set(&Request { bytes: 0, ..request(0) }).expect("the slot is there");
                accepted = middle;
            } else {
                refused = middle;
            }
        }
        refused
    }

    fn set(&mut self, request: &Request) -> Result<(), i32> {
        let &Request { space, id, flags, gpa, bytes, hva } = request;
        assert!(space <= 0xffff && id <= 0xffff, "the kernel's word has 16 bits for each");
        let region = kvm_userspace_memory_region {
            slot: space << 16 | id,
            flags,
            guest_phys_addr: gpa,
            memory_size: bytes,
            userspace_addr: hva,
        };
        // SAFETY: no vCPU is ever made, so nothing reaches through the slots to the memory that they name.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(errno)
    }
}

impl Subject for Kvm {
    fn ask(&mut self, request: &Request, expected: Result<Change, Rule>) -> Result<(), String> {
        let said = self.set(request);
        if said == expected.map(drop).map_err(Rule::errno) {
            Ok(())
        } else {
            Err(format!("KVM says {said:?}"))
        }
    }

    fn check(&mut self, _: &Oracle, _: &mut Random) {}

    /// Probes the state, slot by slot, then removes it.
    fn audit(&mut self, oracle: &Oracle) {
        const EEXIST: Result<(), i32> = Err(17);
        const EINVAL: Result<(), i32> = Err(22);
        const ENOENT: i32 = 2;
        for space in 0..oracle.limits.spaces {
            let slots = oracle.slots(space);
            let spare = (0..oracle.limits.ids).find(|id| !slots.contains_key(id)).unwrap();
            let hva = (self.mapped.as_ptr() as u64).next_multiple_of(PAGE);
            let one = |gfn: u64| Request { space, id: spare, flags: 0, gpa: gfn * PAGE, bytes: PAGE, hva };
            let delete = |id| Request { space, id, flags: 0, gpa: 0, bytes: 0, hva: 0 };
            let whole = |id: u32, slot: Record, gfn: u64| {
                let Record { pages, hva, flags, .. } = slot;
                Request { space, id, flags, gpa: gfn * PAGE, bytes: pages * PAGE, hva }
            };
            for (&id, &slot) in slots {
                // Its frames are taken, and those around it only if another slot has them.
                for gfn in [slot.gfn, slot.end() - 1] {
                    assert_eq!(self.set(&one(gfn)), EEXIST, "{space}:{id} {slot:x?}");
                }
                for gfn in [slot.gfn.wrapping_sub(1), slot.end()] {
                    if gfn < oracle.limits.gfn_end && oracle.find(space, gfn).is_none() {
                        assert_eq!(self.set(&one(gfn)), Ok(()), "beside {space}:{id} {slot:x?}");
                        assert_eq!(self.set(&delete(spare)), Ok(()));
                    }
                }
                // Size, host address and read-only flag are unchanged, or this would be EINVAL.
                if let Some((_, other)) = slots.iter().find(|&(&other, _)| other != id) {
                    assert_eq!(self.set(&whole(id, slot, other.gfn)), EEXIST, "{space}:{id} {slot:x?}");
                }
                // A log exists exactly where it was requested.
                let log = self.vm.get_dirty_log(space << 16 | id, (slot.pages * PAGE) as usize);
                let expected = if slot.flags & LOG_DIRTY != 0 { Ok(()) } else { Err(ENOENT) };
                assert_eq!(log.map(drop).map_err(errno), expected, "{space}:{id} {slot:x?}");
            }
            // Each slot had exactly its frames, and no slot is left over.
            for (&id, slot) in slots {
                assert_eq!(self.set(&delete(id)), Ok(()));
                for gfn in [slot.gfn, slot.end() - 1] {
                    assert_eq!(self.set(&one(gfn)), Ok(()), "after {space}:{id} {slot:x?}");
                    assert_eq!(self.set(&delete(spare)), Ok(()));
                }
            }
            for id in 0..oracle.limits.ids {
                assert_eq!(self.set(&delete(id)), EINVAL, "{space}:{id} should be gone");
            }
        }
    }
}

/// The oracle agrees with the kernel, and slat with both, in the same walk.
#[test]
fn the_kernel_the_oracle_and_slat_agree() {
    let Some(device) = device() else { return };
    let mut tally = Tally::default();
    let seeds = &SEEDS[..thorough(SEEDS.len(), 3)];
    for &seed in seeds {
        let mut kvm = Kvm::new(&device);
        let limits = kvm.limits;
        let mut slat = Slat::new(limits);
        let mut requests = Requests::new(seed, limits, ARENA, MOST);
        let walked = walk(seed, STEPS, limits, &mut requests, &mut [&mut kvm, &mut slat]);
        tally.add(walked.unwrap_or_else(|disagreement| panic!("{disagreement}")));
    }
    eprintln!("{tally:?}"); // with --nocapture
    tally.must_be_worth_something();
    assert!(tally.requests >= 2_500 * seeds.len() as u64);
}
