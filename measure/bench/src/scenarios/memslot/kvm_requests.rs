//! The requests of a VMM, one at a time: slat's `GuestSpace::set` beside `KVM_SET_USER_MEMORY_REGION` on the machine's own
//! /dev/kvm.
//!
//! Both have as many slots but one; the last one is created, moved, gets its writes logged, is asked to grow (which is
//! refused), and deleted, over and over. No vCPU runs: these are the costs of the host's side, a system call included
//! for KVM. A figure is the median of its requests.

use super::slot_design::{Layout, empty_vm};
use crate::scenarios::threads_prelude::*;
use slat::slots::Region;
use std::ffi::CStr;

/// Where KVM is.
pub const PATH: &CStr = c"/dev/kvm";

/// The requests of one turn.
const REQUESTS: [&str; 5] = ["create", "move", "log writes", "grow (refused)", "delete"];
/// Their answers: an error number, 0 for none.
const ANSWERS: [i32; 5] = [0, 0, 0, libc::EINVAL, 0];
/// Turns in one sample.
const TURNS: usize = 100;

/// A VM without a vCPU: it takes requests, and answers with an error number.
type Vmm = Box<dyn FnMut(Region) -> i32>;

/// The machine's own KVM.
pub struct Kvm {
    /// How many slots a VM can have.
    pub slots: u32,
    create_vm: Box<dyn Fn() -> Result<Vmm, String>>,
}

/// Opens KVM; why not, in words, where there is none.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn open(path: &CStr) -> Result<Kvm, String> {
    use kvm_bindings::kvm_userspace_memory_region;
    let kvm = kvm_ioctls::Kvm::new_with_path(path).map_err(|error| error.to_string())?;
    let slots = kvm.get_nr_memslots().try_into().unwrap_or(u32::MAX);
    let create_vm = Box::new(move || -> Result<Vmm, String> {
        let vm = kvm.create_vm().map_err(|error| error.to_string())?;
        Ok(Box::new(move |region| {
            let region = kvm_userspace_memory_region {
                slot: region.slot.0,
                flags: region.flags,
                guest_phys_addr: region.gpa.0,
                memory_size: region.bytes,
                userspace_addr: region.hva.0,
            };
            // SAFETY: the VM has no vCPU, so nothing is ever read or written through its slots.
            let done = unsafe { vm.set_user_memory_region(region) };
            done.err().map_or(0, kvm_ioctls::Error::errno)
        }))
    });
    Ok(Kvm { slots, create_vm })
}

/// Says why there is none.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn open(_path: &CStr) -> Result<Kvm, String> {
    Err("KVM is measured on Linux, on x86-64".into())
}

/// A VM of slat's.
fn slat(slots: u32) -> Result<Vmm> {
    let (vm, mut idle) = (empty_vm(slots).map_err(Error::Machine)?, idle()?);
    Ok(Box::new(move |region| vm.memory().set(&mut idle, region).err().map_or(0, |error| error.errno())))
}

/// Both at one number of slots.
pub fn measure(kvm: &Kvm, slots: u32, runs: u32, report: &mut Report) -> Result<()> {
    let layout = Layout::new(slots, 16 * u64::from(slots), 1);
    let machine = (kvm.create_vm)().map_err(|error| Error::Machine(format!("/dev/kvm: {error}")))?;
    let mut vmms = [("slat", slat(slots)?), ("KVM", machine)];
    for (who, vmm) in &mut vmms {
        for slot in layout.slots().take(slots as usize - 1) {
            let errno = vmm(slot.into());
            if errno != 0 {
                return Err(Error::Machine(format!("{who} refuses memslot {} with errno {errno}", slot.id)));
            }
        }
    }
    let vmms = vmms.map(|(who, vmm)| (who, RefCell::new(vmm)));
    let laps = Lineup::run(runs, vmms, |(_, vmm)| Ok(sample(&mut vmm.borrow_mut(), &layout)))?;
    for (nth, request) in REQUESTS.iter().enumerate() {
        let [slat, kvm] =
            ["slat", "KVM"].map(|name| Series::of(laps.find(|(who, _)| *who == name), |(us, _)| us[nth]));
        let params = params! { "request": request, "slots": slots };
        report.rows.push(Row::compare("KVM", params, "us", &kvm, &slat));
    }
    let at = format!(" at {slots} slots");
    report.checks.extend(laps.checks(&at, |(who, _)| format!("{who}, requests"), |(_, right)| right));
    Ok(())
}

/// Microseconds of each request, and how many answers were right.
fn sample(vmm: &mut Vmm, layout: &Layout) -> ([f64; REQUESTS.len()], [Tally; 1]) {
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
            let errno = vmm(region);
            times.push(start.elapsed().as_nanos() as f64 / 1000.0);
            right += u64::from(errno == answer);
        }
    }
    let all = (TURNS * REQUESTS.len()) as u64;
    (times.map(|times| Series::new(times).median()), [("every answer is right", [right, all])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slat_answers_as_a_vmm_expects() {
        let layout = Layout::new(5, 80, 1);
        let mut slat = slat(5).unwrap();
        for slot in layout.slots().take(4) {
            assert_eq!(slat(slot.into()), 0);
        }
        let (times, [(_, right)]) = sample(&mut slat, &layout);
        assert!(times.iter().all(|&time| time > 0.0));
        assert_eq!(right, [(TURNS * REQUESTS.len()) as u64; 2]);
    }

    #[test]
    fn without_kvm_there_is_a_reason() {
        assert!(open(c"/nonexistent/kvm").is_err_and(|reason| !reason.is_empty()));
    }
}
