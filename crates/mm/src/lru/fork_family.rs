//! Families of forks: address spaces that forks have made of one. They share frames at the same addresses, so
//! after one evicts a page, the others try the same page.
//!
//! A frame is free only when no entry maps it, so evicting from one address space alone would free little. Each
//! other member checks whether it has accessed the page, and keeps it if so. This is an optimization only: a
//! page that was moved to another address, or that another thread is evicting, is evicted later by its own
//! address space ([`crate::swap`]).

use parking_lot::Mutex;
use slat::{Gfn, Idle, Pfn};
use std::fmt::Debug;
use std::ptr;
use std::sync::{Arc, Weak};

/// The request that one member of a family makes to another.
pub(crate) trait FamilyMember: Send + Sync + Debug {
    /// Evicts those of these pages of one region that it maps to these frames and has not accessed, as its
    /// settings allow. The caller holds no lock except its own `reclaimers`.
    fn evict_shared(&self, idle: &mut Idle, shared: &[(Gfn, Pfn)]);
}

/// The members of one family, which share this.
#[derive(Debug, Default)]
pub(crate) struct ForkFamily(Mutex<Vec<Weak<dyn FamilyMember>>>);

impl ForkFamily {
    /// Adds a member.
    pub(crate) fn add(&self, one: Weak<dyn FamilyMember>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(one);
    }

    /// Returns all living members except `one`.
    pub(crate) fn others(&self, one: &dyn FamilyMember) -> Vec<Arc<dyn FamilyMember>> {
        let all = self.0.lock();
        all.iter().filter(|other| !ptr::addr_eq(other.as_ptr(), one)).filter_map(Weak::upgrade).collect()
    }
}
