//! What is a thread's own, in programs that run on this machine, is a CPU's own here: its coroutines share one thread.

use crate::cpu::{Machine, with};
use std::cell::RefCell;
use std::thread::LocalKey;

/// One value for each CPU, and one for the thread itself, outside of a run. See [`thread_local!`](crate::thread_local).
pub struct Local<T: 'static> {
    all: &'static LocalKey<RefCell<Vec<T>>>,
    initial: fn() -> T,
}

impl<T: Clone> Local<T> {
    /// What the macro makes.
    #[doc(hidden)]
    pub const fn new(all: &'static LocalKey<RefCell<Vec<T>>>, initial: fn() -> T) -> Self {
        Self { all, initial }
    }

    /// `f` of the value of the CPU that runs.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("this thread is not being torn down")
    }

    /// The same, or an error while this thread is being torn down.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, std::thread::AccessError> {
        let at = with(Machine::me).map_or(0, |cpu| cpu as usize + 1);
        self.all.try_with(|all| {
            let mut all = all.borrow_mut();
            if all.len() <= at {
                all.resize_with(at + 1, self.initial);
            }
            f(&all[at])
        })
    }
}

/// `std`'s macro of the same name, for one value with a constant to begin with.
#[macro_export]
macro_rules! thread_local {
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $value:ty = const { $initial:expr };) => {
        $(#[$attribute])*
        $visible static $name: $crate::local::Local<$value> = {
            ::std::thread_local! {
                static ALL: ::std::cell::RefCell<::std::vec::Vec<$value>> =
                    const { ::std::cell::RefCell::new(::std::vec::Vec::new()) };
            }
            $crate::local::Local::new(&ALL, || $initial)
        };
    };
}
