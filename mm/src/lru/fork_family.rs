//! ForkFamily: address spaces that forks have made of one. They share pages at the same addresses, so where the page of one is evicted, those
//! of the others are next.
//!
//! A frame is free when no entry maps it any more, so the coldest pages of one address space alone would free little. Each of the kin is
//! asked whether it used the page, and keeps it where it did. This is a matter of speed, not of being right: a page that moved to
//! another address, or that another thread has in hand, is evicted by its own address space some time ([`crate::swap`]).

use parking_lot::Mutex;
use slat::{Gfn, Idle, Pfn};
use std::fmt::Debug;
use std::ptr;
use std::sync::{Arc, Weak};

/// What one of the kin asks of another.
pub(crate) trait FamilyMember: Send + Sync + Debug {
    /// Evicts those of these pages of one region that it has in these frames, and has not used, as its settings allow. The caller holds no
    /// lock but that of its own reclaimers.
    fn evict_shared(&self, idle: &mut Idle, shared: &[(Gfn, Pfn)]);
}

/// See the module's header. All of the kin have it.
#[derive(Debug, Default)]
pub(crate) struct ForkFamily(Mutex<Vec<Weak<dyn FamilyMember>>>);

impl ForkFamily {
    /// It is one of them.
    pub(crate) fn add(&self, one: Weak<dyn FamilyMember>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(one);
    }

    /// Those that are there, but for `one`.
    pub(super) fn others(&self, one: &dyn FamilyMember) -> Vec<Arc<dyn FamilyMember>> {
        let all = self.0.lock();
        all.iter().filter(|other| !ptr::addr_eq(other.as_ptr(), one)).filter_map(Weak::upgrade).collect()
    }
}
