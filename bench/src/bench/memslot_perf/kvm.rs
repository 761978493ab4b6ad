//! The requests of a VMM, one at a time: slat's `Memslots::set` beside `KVM_SET_USER_MEMORY_REGION` on the machine's own
//! /dev/kvm.
//!
//! Both have as many slots but one; the last one is created, moved, gets its writes logged, is asked to grow (which is
//! refused), and deleted, over and over. No vCPU runs: these are the costs of the host's side, a system call included
//! for KVM. A figure is the median of its requests.

use super::empty_vm;
use crate::bench::harness::{Series, interleave};
use crate::bench::report::{Check, Report, Row, params};
use slat::slots::Region;
use slat::{Idle, PAGE_SIZE};
use slat_cli::error::Error;
use slat_cli::thread::idle;
use slat_threads::benches::memslot::Layout;
use slat_threads::benches::memslot::design::Machine;
use slat_threads::host::SimHost;
use std::cell::RefCell;
use std::ffi::CStr;
use std::time::Instant;

/// Where KVM is.
pub const PATH: &CStr = c"/dev/kvm";

/// The requests of one turn.
const REQUESTS: [&str; 5] = ["create", "move", "log writes", "grow (refused)", "delete"];
/// What they are answered with: an error number, 0 for none.
const ANSWERS: [i32; 5] = [0, 0, 0, libc::EINVAL, 0];
/// Turns in one sample.
const TURNS: usize = 100;

/// A VMM: it takes requests, and answers with an error number.
trait Vmm {
    fn set(&mut self, region: Region) -> i32;
}

struct Slat {
    vm: Machine<SimHost>,
    idle: Idle,
}

impl Slat {
    fn new(slots: u32) -> Result<Self, Error> {
        Ok(Self { vm: empty_vm(slots)?, idle: idle()? })
    }
}

impl Vmm for Slat {
    fn set(&mut self, region: Region) -> i32 {
        self.vm.slots().set(&mut self.idle, region).err().map_or(0, |error| error.errno())
    }
}

/// The machine's own KVM.
pub use real::Kvm;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod real {
    use super::{CStr, Region, Vmm};
    use kvm_bindings::kvm_userspace_memory_region;
    use kvm_ioctls::VmFd;

    pub struct Kvm(kvm_ioctls::Kvm);

    impl Kvm {
        /// Why not, in words, where there is none.
        pub fn open(path: &CStr) -> Result<Self, String> {
            kvm_ioctls::Kvm::new_with_path(path).map(Self).map_err(|error| error.to_string())
        }

        /// How many slots a VM can have.
        pub fn slots(&self) -> u32 {
            self.0.get_nr_memslots().try_into().unwrap_or(u32::MAX)
        }

        pub(super) fn create_vm(&self) -> Result<impl Vmm + use<>, String> {
            self.0.create_vm().map_err(|error| error.to_string())
        }
    }

    impl Vmm for VmFd {
        fn set(&mut self, region: Region) -> i32 {
            let region = kvm_userspace_memory_region {
                slot: region.slot.0,
                flags: region.flags,
                guest_phys_addr: region.gpa.0,
                memory_size: region.bytes,
                userspace_addr: region.hva.0,
            };
            // SAFETY: the VM has no vCPU, so nothing is ever read or written through its slots.
            let done = unsafe { self.set_user_memory_region(region) };
            if let Err(error) = done { error.errno() } else { 0 }
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod real {
    use super::{CStr, Slat, Vmm};

    pub struct Kvm;

    impl Kvm {
        pub fn open(_path: &CStr) -> Result<Self, String> {
            Err("KVM is measured on Linux, on x86-64".into())
        }

        pub fn slots(&self) -> u32 {
            0
        }

        pub(super) fn create_vm(&self) -> Result<impl Vmm + use<>, String> {
            Slat::new(0).map_err(|error| error.to_string())
        }
    }
}

/// Both at one number of slots.
pub fn measure(kvm: &Kvm, slots: u32, runs: u32, report: &mut Report) -> Result<(), Error> {
    let layout = Layout::new(slots, 16 * u64::from(slots), 1);
    let machine = kvm.create_vm().map_err(|error| Error::Machine(format!("/dev/kvm: {error}")))?;
    let vmms: [RefCell<Box<dyn Vmm>>; 2] =
        [RefCell::new(Box::new(Slat::new(slots)?)), RefCell::new(Box::new(machine))];
    for (vmm, who) in vmms.iter().zip(["slat", "KVM"]) {
        for slot in layout.slots().take(slots as usize - 1) {
            let errno = vmm.borrow_mut().set(slot.into());
            if errno != 0 {
                return Err(Error::Machine(format!("{who} refuses memslot {} with errno {errno}", slot.id)));
            }
        }
    }
    let samples = interleave(runs as usize, &vmms, |vmm| sample(&mut **vmm.borrow_mut(), &layout));
    for (nth, request) in REQUESTS.iter().enumerate() {
        let [slat, kvm] = [0, 1].map(|who: usize| Series::of(&samples[who], |sample| sample.0[nth]));
        let params = params! { "request": request, "slots": slots };
        report.rows.push(Row::compare("KVM", params, "us", &kvm, &slat));
    }
    for (who, samples) in ["slat", "KVM"].iter().zip(&samples) {
        let right = samples.iter().map(|sample| ("every answer is right", sample.1)).collect::<Vec<_>>();
        let (who, at) = (format!("{who}, requests"), format!(" at {slots} slots"));
        report.checks.extend(Check::tallied(&who, &at, right.iter()));
    }
    Ok(())
}

/// Microseconds of each request, and how many answers were right.
fn sample(vmm: &mut dyn Vmm, layout: &Layout) -> ([f64; REQUESTS.len()], [u64; 2]) {
    let created = Region::from(layout.last());
    let moved = Region { gpa: layout.end().gpa(), ..created };
    let logged = Region { flags: Region::LOG_DIRTY, ..moved };
    let grown = Region { bytes: logged.bytes + PAGE_SIZE, ..logged };
    let turn = [created, moved, logged, grown, Region::deletion(created.slot)];

    let mut times: [Vec<f64>; REQUESTS.len()] = Default::default();
    let mut right = 0;
    for _ in 0..TURNS {
        for ((region, answer), times) in turn.into_iter().zip(ANSWERS).zip(&mut times) {
            let start = Instant::now();
            let errno = vmm.set(region);
            times.push(start.elapsed().as_nanos() as f64 / 1000.0);
            right += u64::from(errno == answer);
        }
    }
    let all = (TURNS * REQUESTS.len()) as u64;
    (times.map(|times| Series::new(times).median()), [right, all])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slat_answers_as_a_vmm_expects() {
        let layout = Layout::new(5, 80, 1);
        let mut slat = Slat::new(5).unwrap();
        for slot in layout.slots().take(4) {
            assert_eq!(slat.set(slot.into()), 0);
        }
        let (times, right) = sample(&mut slat, &layout);
        assert!(times.iter().all(|&time| time > 0.0));
        assert_eq!(right, [(TURNS * REQUESTS.len()) as u64; 2]);
    }

    #[test]
    fn without_kvm_there_is_a_reason() {
        assert!(Kvm::open(c"/nonexistent/kvm").is_err_and(|reason| !reason.is_empty()));
    }
}
