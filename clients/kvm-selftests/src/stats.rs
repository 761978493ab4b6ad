//! The file of `KVM_GET_STATS_FD`: a header, a name, a descriptor of each statistic, and the values now.

use crate::capabilities::NX_PERIOD;
use crate::machine::Machine;
use kvm_bindings::{kvm_stats_desc, kvm_stats_header};
use slat::Idle;
use std::sync::Arc;

/// The statistics of a VM, or of a vCPU, of which this library has none of its own.
#[derive(Clone)]
pub struct Statistics {
    pub machine: Arc<Machine>,
    pub of_vcpu: bool,
}

const NAME_BYTES: usize = 48;
const HEADER: usize = size_of::<kvm_stats_header>();
const DESCRIPTOR: usize = size_of::<kvm_stats_desc>() + NAME_BYTES;
/// `KVM_STATS_TYPE_INSTANT`; a cumulative one is 0.
const INSTANT: u32 = 1;

impl Statistics {
    /// The contents of the file now.
    pub fn contents(&self) -> Vec<u8> {
        let mut split = 0;
        if let Some(mut idle) = Idle::take() {
            self.machine.vm().collect(&mut idle); // leaves of dead tables count until then
            split = if NX_PERIOD.is_some() { self.machine.split_pages(&mut idle).len() as u64 } else { 0 };
        }
        let stats = self.machine.vm().stats();
        let faults = stats.mapped_faults + stats.permission_faults + stats.spurious_faults;
        let [small, large, huge] = stats.leaves;
        let of_vm = [
            ("pages_4k", INSTANT, small),
            ("pages_2m", INSTANT, large),
            ("pages_1g", INSTANT, huge),
            ("nx_lpage_splits", INSTANT, split),
        ];
        let of_vcpu = [("pf_taken", 0, faults), ("pf_mmio_spte_created", 0, stats.mmio_faults)];
        let all: &[_] = if self.of_vcpu { &of_vcpu } else { &of_vm };

        let data_offset = HEADER + NAME_BYTES + all.len() * DESCRIPTOR;
        let words = [0, NAME_BYTES, all.len(), HEADER, HEADER + NAME_BYTES, data_offset];
        let mut file: Vec<u8> = words.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect();
        let name = |name: &str| {
            let mut bytes = [0; NAME_BYTES];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            bytes
        };
        file.extend(name("kvm-slat"));
        for (nth, &(title, flags, _)) in all.iter().enumerate() {
            // Flags; exponent 0 and size 1, of two bytes each; offset; no buckets.
            for word in [flags, 1 << 16, nth as u32 * 8, 0] {
                file.extend(word.to_le_bytes());
            }
            file.extend(name(title));
        }
        file.extend(all.iter().flat_map(|&(_, _, value)| value.to_le_bytes()));
        file
    }
}
