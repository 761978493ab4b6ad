//! Without `std`: the kernel supplies functions for memory and for panics. `slat.h` declares them.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_char, c_void};
use core::fmt::{self, Write};
use core::panic::PanicInfo;

unsafe extern "C" {
    /// A kernel supplies this to a library without std. Returns unused memory of `bytes` bytes, aligned to `align`; or
    /// null, and then slat may panic.
    fn slat_host_alloc(bytes: usize, align: usize) -> *mut c_void;
    /// A kernel supplies this to a library without std. Frees memory of `slat_host_alloc`.
    fn slat_host_free(memory: *mut c_void, bytes: usize, align: usize);
    /// A kernel supplies this to a library without std. slat calls it when it has panicked, which is a bug in slat.
    /// Does not return.
    fn slat_host_panic(text: *const c_char, bytes: usize) -> !;
}

struct Kernel;

// SAFETY: `slat.h` has the kernel promise that memory is unused, as large and as aligned as was asked for.
unsafe impl GlobalAlloc for Kernel {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the kernel's own function.
        unsafe { slat_host_alloc(layout.size(), layout.align()).cast() }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; allocated with this layout, by the caller's contract.
        unsafe { slat_host_free(memory.cast(), layout.size(), layout.align()) }
    }
}

#[global_allocator]
static KERNEL: Kernel = Kernel;

/// The beginning of a message, as much as fits.
struct Text([u8; 240], usize);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, from) in self.0.iter_mut().skip(self.1).zip(text.bytes()) {
            (*to, self.1) = (from, self.1 + 1);
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = Text([0; 240], 0);
    let _ = write!(text, "{info}");
    // SAFETY: the kernel's own function, which does not return; the text is ours.
    unsafe { slat_host_panic(text.0.as_ptr().cast(), text.1) }
}

/// The prebuilt `alloc` of hosted targets refers to this symbol; with `panic = "abort"` nothing calls it.
#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
