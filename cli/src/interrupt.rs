//! Ctrl-C: the first one asks for an end, and what there is gets printed; the second one kills. Who has taken the terminal
//! for a screen hears of other signals that end him in the same way, so that he gives it back.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// True from the first Ctrl-C on. Whoever waits looks at it.
pub fn flag() -> &'static AtomicBool {
    #[cfg(unix)]
    hear(libc::SIGINT);
    &ASKED
}

/// The same for a lost terminal, and for whoever asks politely.
#[cfg(feature = "top")]
pub fn hear_all() {
    #[cfg(unix)]
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().for_each(hear);
}

#[cfg(unix)]
fn hear(signal: libc::c_int) {
    extern "C" fn asked(_: libc::c_int) {
        ASKED.store(true, Ordering::Relaxed);
    }
    let handler: extern "C" fn(libc::c_int) = asked;
    // SAFETY: the handler stores one atomic, which is allowed in a signal; SA_RESETHAND makes a second
    // Ctrl-C end the process at once.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// As if Ctrl-C were pressed: for whoever reads keys by himself.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Whether Ctrl-C was pressed.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
