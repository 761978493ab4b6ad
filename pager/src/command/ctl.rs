//! `ctl`: lists and changes what a daemon serves, by its control socket.

use super::failure::{Failure, other};
use super::serve;
use slat_pager::{Listed, Listen, Request, ask, daemons, list};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// Time within which a healthy daemon answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon, and the request.
#[derive(clap::Args)]
pub struct Ctl {
    /// The socket that `serve --control` was given
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
    /// The number of the daemon in `list`, if another daemon has started at the same path since
    #[arg(long, value_name = "PID")]
    daemon: Option<u32>,
    #[command(subcommand)]
    request: Word,
}

#[derive(clap::Subcommand)]
enum Word {
    /// List the sockets and sessions of the daemons at this path
    List {
        /// Print each daemon's answer as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Listen on a further socket; returns when the template is open
    Add(Add),
    /// Close and remove a socket; its guests are served until they end
    Remove {
        /// Path of the socket
        socket: PathBuf,
    },
    /// Give new guests the newest version of a template, or of all
    Reload {
        /// Name of the template
        template: Option<String>,
    },
    /// Take no further guest; the daemon ends with its last guest
    Drain,
    /// Check that the keeper lives and a worker answers; exit status 3 if not
    Health,
    /// Check that new guests are served: sockets, templates and the store; exit status 3 if not
    Ready,
}

/// A socket, and what its guests get.
#[derive(clap::Args)]
struct Add {
    /// The socket, and the template of the guests that connect to it
    #[arg(value_name = "SOCKET=TEMPLATE", value_parser = serve::guest)]
    guest: (PathBuf, String),
    /// TEMPLATE is a memory image: a file, a block device, or the address of an NBD server
    #[arg(long)]
    image: bool,
    /// The exact version of the template
    #[arg(long, conflicts_with = "image")]
    version: Option<String>,
    /// Serve one guest, and remove the socket when it begins
    #[arg(long)]
    once: bool,
    /// Most guests at a time
    #[arg(long, value_name = "GUESTS")]
    most: Option<usize>,
    /// Owner of the socket, for a VMM of another user
    #[arg(long)]
    uid: Option<u32>,
    /// Group of the socket
    #[arg(long)]
    gid: Option<u32>,
    /// Permissions of the socket, such as 660
    #[arg(long, value_parser = mode)]
    mode: Option<u32>,
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .map_err(|_| format!("{text:?} is no octal number: write three digits from 0 to 7"))
}

impl Add {
    fn listen(&self) -> Result<Listen, Failure> {
        let (socket, name) = &self.guest;
        let socket = std::path::absolute(socket).map_err(other)?;
        let mut listen = match self.image {
            true if name.starts_with("nbd://") || name.starts_with("nbd+unix://") => {
                Listen::image(socket, name)
            }
            // The daemon may have another working directory.
            true => {
                let image = std::path::absolute(name).map_err(other)?;
                Listen::image(socket, image.to_str().ok_or_else(|| other("an image's path is UTF-8"))?)
            }
            false => Listen::template(socket, name),
        };
        listen.version.clone_from(&self.version);
        (listen.once, listen.most) = (self.once, self.most);
        (listen.uid, listen.gid, listen.mode) = (self.uid, self.gid, self.mode);
        Ok(listen)
    }
}

impl Ctl {
    pub fn run(&self) -> Result<(), Failure> {
        let request = match &self.request {
            Word::List { json } => return self.list(*json),
            Word::Add(add) => Request::Add(add.listen()?),
            Word::Remove { socket } => {
                Request::Remove { socket: std::path::absolute(socket).map_err(other)? }
            }
            Word::Reload { template } => Request::Reload { template: template.clone() },
            Word::Drain => Request::Drain,
            Word::Health => return self.check("healthy"),
            Word::Ready => return self.check("ready"),
        };
        let named = |error: std::io::Error| other(format!("{}: {error}", self.socket().display()));
        let answer = ask(&self.socket(), &request, None).map_err(named)?;
        if let Some(guests) = answer["guests"].as_u64() {
            println!("the daemon drains: {guests} guests are left");
        }
        Ok(())
    }

    /// Asks for health, and prints one line.
    fn check(&self, what: &str) -> Result<(), Failure> {
        let failed = |why: &str| Failure::Found(format!("not {what}: {why}"));
        let answer = match ask(&self.socket(), &Request::Health, Some(PATIENCE)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(failed(&format!("no worker answers within {PATIENCE:?}")));
            }
            Err(error) => return Err(failed(&format!("{}: {error}", self.socket().display()))),
            Ok(answer) => answer,
        };
        if answer[what].as_bool() != Some(true) {
            return Err(failed(answer["why"].as_str().unwrap_or_default()));
        }
        println!("{what}");
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        match self.daemon {
            Some(daemon) => {
                let mut path = self.control.clone().into_os_string();
                path.push(format!(".{daemon}"));
                let path = PathBuf::from(path);
                // A keeper that followed a killed one answers where the first one did.
                let is_it = |socket: &PathBuf| list(socket).is_ok_and(|listed| listed.keeper == daemon);
                let mut others = daemons(&self.control).into_iter().filter(|_| !path.exists());
                others.find(is_it).unwrap_or(path)
            }
            None => self.control.clone(),
        }
    }

    fn list(&self, json: bool) -> Result<(), Failure> {
        let sockets = if self.daemon.is_some() { vec![self.socket()] } else { daemons(&self.control) };
        let mut answered = 0;
        for socket in sockets {
            let listed = match list(&socket) {
                // It was killed.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                listed => listed.map_err(|error| other(format!("{}: {error}", socket.display())))?,
            };
            answered += 1;
            if json {
                println!("{}", serde_json::to_string(&listed).map_err(other)?);
            } else {
                print(&listed);
            }
        }
        match answered {
            0 => Err(other(format!("{}: no daemon answers here", self.control.display()))),
            _ => Ok(()),
        }
    }
}

fn print(daemon: &Listed) {
    let state = if daemon.drains { "drains" } else { "serves" };
    println!("daemon {}: {state}, {} guests, worker {}", daemon.keeper, daemon.sessions.len(), daemon.worker);
    for socket in &daemon.sockets {
        let state = if socket.is_open { "open" } else { "closed" };
        let version = socket.version.as_deref().unwrap_or("-");
        let (path, template) = (socket.socket.display(), &socket.template);
        println!("  {path}  {state}  {template}  {version}  {} guests", socket.guests);
    }
    for session in &daemon.sessions {
        let version = session.version.as_deref().unwrap_or("-");
        let wait = match (&session.reason, session.waiting) {
            (Some(reason), waiting) => format!("  {waiting} faults wait: {reason}"),
            (None, _) => String::new(),
        };
        let (number, pid, template, age) = (session.session, session.pid, &session.template, session.age);
        println!("  session {number}  pid {pid}  {template}  {version}  {}  {age:.0} s{wait}", session.state);
    }
}
