//! A machine in an unmodified QEMU, controlled through QMP and the guest's serial port.

use crate::daemon::{Outcome, TEMPLATE};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The memory of the machine, in MiB.
pub const MIB: usize = 256;
/// Addresses that are not RAM: the display, and copies of firmware.
pub const NO_RAM: std::ops::Range<usize> = 0xA_0000..0x10_0000;

/// The file through which clones share memory.
pub const SHARE: &str = "/dev/shm/slat-client-pager";

/// The backing of a machine's RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Private memory, as in Firecracker.
    Anonymous,
    /// Shared memory.
    Memfd,
    /// Shared memory, whose cold pages the pager swaps out.
    Swapped,
    /// A private mapping of the memory that clones of the template share.
    Clone,
}

impl Backend {
    fn object(self) -> String {
        match self {
            Self::Anonymous => "memory-backend-ram,share=off".into(),
            Self::Memfd | Self::Swapped => "memory-backend-memfd,share=on".into(),
            Self::Clone => {
                format!("memory-backend-file,share=off,mem-path={SHARE}/{}", TEMPLATE)
            }
        }
    }

    /// The pager's options for it.
    pub fn flags(self, work: &Path) -> Vec<String> {
        match self {
            Self::Anonymous | Self::Memfd => Vec::new(),
            Self::Swapped => {
                let words = "--tick 0.1 --cold 1 --swap".split(' ').map(str::to_owned);
                words.chain([work.display().to_string()]).collect()
            }
            Self::Clone => vec!["--share".into(), SHARE.into()],
        }
    }
}

/// The parts of a machine to start.
pub struct Setting<'a> {
    pub work: &'a Path,
    pub kernel: &'a Path,
    pub backend: Backend,
    /// The paths of the preloaded library and of the pager's socket.
    pub pager: Option<(&'a Path, &'a Path)>,
}

/// A running QEMU; killed when it is dropped.
pub struct Machine {
    child: Child,
    serial: UnixStream,
    qmp: BufReader<UnixStream>,
    text: String,
}

impl Machine {
    pub fn start(setting: &Setting, is_incoming: bool) -> Outcome<Self> {
        let at = |name: &str| setting.work.join(name);
        for name in ["serial", "qmp"] {
            _ = std::fs::remove_file(at(name));
        }
        let socket = |name: &str| format!("{},server=on,wait=off", at(name).display());
        let mut qemu = Command::new("qemu-system-x86_64");
        // One processor: on more, QEMU's translated code fails with a kernel that patches its own code.
        qemu.args("-accel tcg -cpu max -smp 1 -nodefaults -display none -no-user-config".split(' '));
        qemu.args(["-M", "q35,memory-backend=ram", "-m", &MIB.to_string()]);
        qemu.args(["-object", &format!("{},id=ram,size={MIB}M", setting.backend.object())]);
        qemu.arg("-kernel").arg(setting.kernel).arg("-initrd").arg(at("initrd"));
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet", "-device", "virtio-balloon-pci"]);
        qemu.args(["-chardev", &format!("socket,id=s,path={}", socket("serial")), "-serial", "chardev:s"]);
        qemu.args(["-qmp", &format!("unix:{}", socket("qmp"))]);
        if is_incoming {
            qemu.args(["-incoming", "defer"]);
        }
        if let Some((library, socket)) = setting.pager {
            qemu.env("LD_PRELOAD", library).env("SLAT_PAGER_SOCKET", socket);
            qemu.env("SLAT_PAGER_BYTES", (MIB << 20).to_string());
        }
        let log = File::create(at("qemu.txt"))?;
        let mut child = qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let sockets = connect(&at("serial"), &mut child)
            .and_then(|serial| Ok((serial, connect(&at("qmp"), &mut child)?)));
        let (serial, qmp) = match sockets {
            Ok(sockets) => sockets,
            Err(error) => {
                _ = child.kill();
                _ = child.wait();
                let said = std::fs::read_to_string(at("qemu.txt")).unwrap_or_default();
                return Err(format!("{error}: {}", said.trim()).into());
            }
        };
        let mut machine = Self { child, serial, qmp: BufReader::new(qmp), text: String::new() };
        machine.line()?;
        machine.ask("qmp_capabilities", &json!({}))?;
        Ok(machine)
    }

    /// Executes a command of QMP.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Outcome<Value> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        writeln!(self.qmp.get_mut(), "{line}")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                return Err(format!("{command}: {error}").into());
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn line(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.qmp.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Sets how long to wait for an answer of QMP and of the guest.
    pub fn patience(&mut self, patience: Duration) -> Outcome<()> {
        self.qmp.get_ref().set_read_timeout(Some(patience))?;
        Ok(self.serial.set_read_timeout(Some(patience))?)
    }

    /// Types a line to the guest, unless it is empty.
    pub fn say(&mut self, line: &str) -> Outcome<()> {
        if !line.is_empty() {
            writeln!(self.serial, "{line}")?;
        }
        Ok(())
    }

    /// Waits for a line of the guest with this word, perhaps after a prompt, and returns the text after the word.
    pub fn hear(&mut self, word: &str) -> Outcome<String> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let found = line.split_once(word).map(|(_, rest)| rest.trim().to_owned());
                self.text = rest.to_owned();
                match found {
                    Some(found) => return Ok(found),
                    None => continue,
                }
            }
            let mut part = [0; 4096];
            let got = self.serial.read(&mut part)?;
            if got == 0 {
                return Err("the machine ended".into());
            }
            self.text.push_str(&String::from_utf8_lossy(&part[..got]));
        }
    }

    /// Saves or loads the machine without its RAM.
    pub fn migrate(&mut self, command: &str, uri: &str) -> Outcome<()> {
        let capability = json!([{ "capability": "x-ignore-shared", "state": true }]);
        self.ask("migrate-set-capabilities", &json!({ "capabilities": capability }))?;
        self.ask(command, &json!({ "uri": uri }))?;
        let began = Instant::now();
        loop {
            match self.ask("query-migrate", &json!({}))?["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed") => return Err(format!("{command} failed").into()),
                _ if began.elapsed() > Duration::from_secs(60) => {
                    return Err(format!("{command} does not end").into());
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The file of its RAM.
    pub fn memory(&self) -> Outcome<PathBuf> {
        let folder = format!("/proc/{}/fd", self.child.id());
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if std::fs::read_link(&path)?.to_string_lossy().contains("memory-backend-memfd") {
                return Ok(path);
            }
        }
        Err("QEMU has no memfd".into())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Connects to a socket that a process is about to make.
fn connect(path: &Path, child: &mut Child) -> Outcome<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(_) if child.try_wait()?.is_some() => return Err("QEMU ended".into()),
            Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
