//! Thread-local variables. All CPUs share one thread, so each CPU has its own value here.

use crate::cpu::{Machine, with};
use std::cell::RefCell;
use std::thread::LocalKey;

/// One value per CPU, and one for the thread outside of a run. See [`thread_local!`](crate::thread_local).
pub struct Local<T: 'static> {
    all: &'static LocalKey<RefCell<Vec<T>>>,
    initial: fn() -> T,
}

impl<T: Clone> Local<T> {
    /// The variable that the macro declares.
    #[doc(hidden)]
    pub const fn new(all: &'static LocalKey<RefCell<Vec<T>>>, initial: fn() -> T) -> Self {
        Self { all, initial }
    }

    /// Calls `f` with the value of the running CPU.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("this thread is not being torn down")
    }

    /// Like `with`, but an error while the thread is being torn down.
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

/// `std`'s macro of the same name, for a value with a constant initializer.
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
