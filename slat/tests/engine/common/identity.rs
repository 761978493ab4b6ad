//! A host whose frame is the address, writable.

use slat::table::memory::TableMemory;
use slat::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// See the module's header; with pages of 2 MiB where `large` says so.
#[derive(Default, Debug)]
pub struct Identity {
    pub large: AtomicBool,
}

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Identity {}

impl Host for Identity {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let level = if self.large.load(SeqCst) { Level::M2 } else { Level::K4 };
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}
