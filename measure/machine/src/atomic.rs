//! Atomics with the interface of `core`'s. Each operation is an access to a cache line by the running CPU.
//!
//! The words have the layout of `core`'s, so a page-table entry can be one. Outside of a run they are `core`'s and
//! take no virtual time.

use crate::acts::copy;
use crate::cpu::with;
use crate::prices::Ps;
use crate::schedule::Access;
use core::fmt;
use core::panic::Location;
use core::sync::atomic::{self as core_atomic, Ordering};

/// Charges the running CPU for an access to the line at `address`.
#[inline]
#[track_caller]
pub(crate) fn access<T>(address: *const T, access: Access) {
    let site = Location::caller();
    with(|machine| machine.access(address.addr(), access, site));
}

/// Charges the running CPU for loading each line of `whole`.
#[track_caller]
pub fn read_words<T: ?Sized>(whole: &T) {
    for line in lines_of(whole) {
        access(core::ptr::without_provenance::<u8>(line), Access::Load);
    }
    with(|machine| machine.spend(machine.prices.word * (size_of_val(whole) / 8) as Ps));
}

/// Charges the running CPU for loads of these words, none of which depends on another: their lines travel at the same time.
#[track_caller]
pub fn read_at_once(words: impl Iterator<Item = *const ()>) {
    let (site, mut loads) = (Location::caller(), 0);
    with(|machine| {
        machine.access_at_once(words.map(<*const ()>::addr).inspect(|_| loads += 1), Access::Load, site);
        machine.spend(machine.prices.load * loads);
    });
}

/// Charges the running CPU for a copy of `from` that it has made in `to`: their lines travel at the same time.
#[track_caller]
pub fn copied<T: ?Sized>(from: &T, to: &T) {
    let site = Location::caller();
    with(|machine| machine.access_at_once(lines_of(from), Access::Load, site));
    filled(to);
    copy(size_of_val(to));
}

/// Makes the running CPU, which has filled `whole`, the owner of its lines. The stores are free.
#[track_caller]
pub fn filled<T: ?Sized>(whole: &T) {
    let site = Location::caller();
    with(|machine| machine.access_at_once(lines_of(whole), Access::Store, site));
}

/// Forgets which CPUs used the lines of `whole`, which was allocated or freed: the next to use them uses other memory.
pub fn forget<T>(whole: *const T) {
    let lines = (whole.addr()..whole.addr() + size_of::<T>()).step_by(64);
    with(|machine| lines.for_each(|address| machine.forget(address)));
}

/// An address in each line of `whole`.
fn lines_of<T: ?Sized>(whole: &T) -> impl Iterator<Item = usize> + use<T> {
    let begins = core::ptr::from_ref(whole).addr();
    (begins..begins + size_of_val(whole)).step_by(64)
}

macro_rules! charged {
    ($name:ident $(<$param:ident>)?, $value:ty, $($operation:ident)*) => {
        #[doc = concat!("`core`'s `", stringify!($name), "`, each operation charged.")]
        #[repr(transparent)]
        pub struct $name $(<$param>)? (core_atomic::$name $(<$param>)?);

        #[allow(missing_docs, reason = "each is core's of the same name")]
        impl $(<$param>)? $name $(<$param>)? {
            pub const fn new(value: $value) -> Self {
                Self(core_atomic::$name::new(value))
            }

            /// The underlying atomic, whose operations take no virtual time: for statistics, and for words that only
            /// one CPU uses.
            #[inline(always)]
            pub const fn free(&self) -> &core_atomic::$name $(<$param>)? {
                &self.0
            }

            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                access(self, Access::Load);
                self.0.load(order)
            }

            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                access(self, Access::Store);
                self.0.store(value, order);
            }

            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                done: Ordering,
                lost: Ordering,
            ) -> Result<$value, $value> {
                access(self, Access::Rmw);
                self.0.compare_exchange(old, new, done, lost)
            }

            $(#[inline]
            #[track_caller]
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Rmw);
                self.0.$operation(value, order)
            })*
        }

        impl $(<$param>)? Default for $name $(<$param>)? {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$param>)? fmt::Debug for $name $(<$param>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

charged!(AtomicBool, bool, swap);
charged!(AtomicU8, u8, swap fetch_and fetch_or);
charged!(AtomicU64, u64, swap fetch_add fetch_sub fetch_and fetch_or fetch_max);
charged!(AtomicPtr<T>, *mut T, swap);
