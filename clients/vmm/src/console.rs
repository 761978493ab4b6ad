//! The serial port COM1, and the terminal behind it.

use anyhow::{Result, anyhow};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use slat_kvm::KvmVm;
use slat_kvm::kvm_ioctls::Error;
use std::io::{Read, Stdout, stdin, stdout};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

const PORTS: Range<u16> = 0x3f8..0x400;

/// The port's interrupt.
struct Line(Arc<KvmVm>);

impl Trigger for Line {
    type E = Error;

    fn trigger(&self) -> Result<(), Error> {
        const COM1: u32 = 4;
        self.0.fd().set_irq_line(COM1, true)?;
        self.0.fd().set_irq_line(COM1, false)
    }
}

pub struct Console(Mutex<Serial<Line, NoEvents, Stdout>>);

impl Console {
    pub fn new(vm: &Arc<KvmVm>) -> Self {
        Self(Mutex::new(Serial::new(Line(vm.clone()), stdout())))
    }

    /// Handles a store to a port. Ignores ports that are not the console's.
    pub fn write(&self, port: u16, byte: u8) -> Result<()> {
        let Some(register) = register(port) else { return Ok(()) };
        self.with(|serial| serial.write(register, byte)).map_err(|error| anyhow!("the console: {error}"))
    }

    /// Handles a load from a port.
    pub fn read(&self, port: u16) -> Option<u8> {
        register(port).map(|register| self.with(|serial| serial.read(register)))
    }

    /// Passes typed keys to the guest while the process lives.
    pub fn hear(self: &Arc<Self>) -> Result<()> {
        let console = self.clone();
        let hears = move || {
            let mut typed = [0; 64];
            while let Ok(bytes @ 1..) = stdin().read(&mut typed) {
                let mut left = &typed[..bytes];
                while !left.is_empty() {
                    let room = console.with(|serial| serial.fifo_capacity()).min(left.len());
                    let (now, later) = left.split_at(room);
                    // An error can be ignored: the guest also reads its port without an interrupt.
                    _ = console.with(|serial| serial.enqueue_raw_bytes(now));
                    left = later;
                    if !left.is_empty() {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        };
        thread::Builder::new().name("console".into()).spawn(hears)?;
        Ok(())
    }

    fn with<T>(&self, f: impl FnOnce(&mut Serial<Line, NoEvents, Stdout>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn register(port: u16) -> Option<u8> {
    PORTS.contains(&port).then(|| (port - PORTS.start) as u8)
}

/// A terminal that passes each key on. The drop restores its settings. Ctrl-C ends the command.
pub struct Keys(Option<Termios>);

impl Keys {
    pub fn new() -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(mut now) = before.clone() {
            now.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // A terminal that refuses passes whole lines on.
            _ = tcsetattr(stdin(), OptionalActions::Now, &now);
        }
        Self(before)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}
