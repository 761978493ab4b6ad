//! A pointer to a host is a host: `&H`, `Box<H>` and `Arc<H>`. So a VMM may share its host with its VMs.
//!
//! Each function is forwarded, also those with a default. A test calls all of them.

use super::{Host, HostError, HostPage, Token, VcpuId};
use crate::table::memory::TablesOf;
use crate::trace::TraceEvent;
use crate::{Access, Gfn, Hva, Idle, Pfn, Span, TableMemory, Word};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;
use core::ptr::NonNull;

/// The tables of a pointer to a host: those of the host.
struct Behind<T>(T);

// SAFETY: private, and made only for the pointers below, which always lead to the same host.
unsafe impl<P: Deref, T: TablesOf<P::Target>> TablesOf<P> for Behind<T> {
    type Memory = T::Memory;

    #[inline(always)]
    fn memory(host: &P) -> &T::Memory {
        T::memory(host)
    }
}

macro_rules! forward {
    ($($pointer:ty,)*) => {$(
        // SAFETY: each function is that of the memory behind the pointer, which keeps the contract.
        unsafe impl<T: TableMemory> TableMemory for $pointer {
            const SINGLE_PAGES: bool = T::SINGLE_PAGES;

            fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
                T::lend(self, pages)
            }

            unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
                // SAFETY: the caller guarantees it.
                unsafe { T::take_back(self, first, pfn, pages) }
            }

            #[inline(always)]
            fn at(&self, pfn: Pfn) -> NonNull<u8> {
                T::at(self, pfn)
            }
        }

        impl<T: Host> Host for $pointer {
            fn tables() -> impl TablesOf<Self> {
                Behind(T::tables())
            }

            #[inline(always)]
            fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
                T::lookup(self, hva, access)
            }

            fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
                T::resolve(self, idle, hva, access)
            }

            fn read(&self, hva: Hva) -> Option<Word> {
                T::read(self, hva)
            }

            fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
                T::read_all(self, hva, words)
            }

            fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
                T::compare_exchange(self, hva, current, new)
            }

            fn token(&self, hva: Hva) -> Token {
                T::token(self, hva)
            }

            fn kick(&self, vcpu: VcpuId) {
                T::kick(self, vcpu);
            }

            fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
                T::broadcast_flush(self, gfns)
            }

            #[inline(always)]
            fn observe(&self, event: TraceEvent) {
                T::observe(self, event);
            }
        }
    )*};
}

forward! { &T, Box<T>, Arc<T>, }

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::host::tables_of;
    use crate::table::memory::Own;
    use core::cell::RefCell;
    use std::vec::Vec;

    std::thread_local! {
        static CALLED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    fn called(name: &'static str) {
        CALLED.with_borrow_mut(|called| called.push(name));
    }

    /// A host that notes each call, and answers by no default.
    struct Notes;

    const PAGE: NonNull<u8> = NonNull::dangling();

    // SAFETY: the test below only calls it, and no VM has it.
    unsafe impl TableMemory for Notes {
        const SINGLE_PAGES: bool = true;

        fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
            called("lend");
            None
        }
        unsafe fn take_back(&self, _: NonNull<u8>, _: Pfn, _: usize) {
            called("take_back");
        }
        fn at(&self, _: Pfn) -> NonNull<u8> {
            called("at");
            PAGE
        }
    }

    impl Host for Notes {
        fn tables() -> impl TablesOf<Self> {
            called("tables");
            Own
        }
        fn lookup(&self, _: Hva, _: Access) -> Option<HostPage> {
            called("lookup");
            None
        }
        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            called("resolve");
            Err(HostError::Fault)
        }
        fn read(&self, _: Hva) -> Option<Word> {
            called("read");
            None
        }
        fn read_all(&self, _: Hva, _: &mut [Word]) -> bool {
            called("read_all");
            false
        }
        fn compare_exchange(&self, _: Hva, _: Word, _: Word) -> Option<Result<Word, Word>> {
            called("compare_exchange");
            None
        }
        fn token(&self, _: Hva) -> Token {
            called("token");
            Token(0)
        }
        fn kick(&self, _: VcpuId) {
            called("kick");
        }
        fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
            called("broadcast_flush");
            false
        }
        fn observe(&self, _: TraceEvent) {
            called("observe");
        }
    }

    /// The functions of both traits, as their sources declare them.
    fn declared() -> Vec<&'static str> {
        let of = |source: &'static str, begin: &str| {
            let body = source.split(begin).nth(1).unwrap().split("\n}\n").next().unwrap();
            let functions = body.lines().filter_map(|line| {
                let line = line.strip_prefix("    ")?;
                let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("unsafe fn "))?;
                name.split('(').next()
            });
            functions.collect::<Vec<_>>()
        };
        let memory = of(include_str!("../table/memory.rs"), "pub unsafe trait TableMemory");
        [memory, of(include_str!("../host.rs"), "pub trait Host")].concat()
    }

    fn is_single<M: TableMemory>(_: &M) {
        assert!(M::SINGLE_PAGES);
    }

    fn call_all<H: Host>(host: &H) -> Vec<&'static str> {
        let mut idle = Idle::take().unwrap();
        _ = H::tables();
        let memory = tables_of(host);
        _ = (memory.lend(1), memory.at(Pfn(0)), is_single(memory));
        // SAFETY: `Notes` frees nothing.
        unsafe { memory.take_back(PAGE, Pfn(0), 1) };
        _ = (host.lookup(Hva(0), Access::Read), host.resolve(&mut idle, Hva(0), Access::Read));
        _ = (host.read(Hva(0)), host.read_all(Hva(0), &mut []), host.token(Hva(0)));
        _ = host.compare_exchange(Hva(0), Word(0), Word(0));
        host.kick(VcpuId(0));
        _ = host.broadcast_flush(Span::default());
        host.observe(TraceEvent::GracePeriod);
        let mut called = CALLED.take();
        called.sort_unstable();
        called
    }

    #[test]
    fn a_pointer_to_a_host_forwards_every_function() {
        let mut declared = declared();
        declared.sort_unstable();
        assert_eq!(call_all(&&Notes), declared);
        assert_eq!(call_all(&Box::new(Notes)), declared);
        assert_eq!(call_all(&Arc::new(Notes)), declared);
    }
}
