//! Bare-metal x86 for the judge and the hypervisor: boot, serial, heap, exit, SVM, VMX.
#![no_std]
#![no_main]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
