//! The subcommands.

mod bench;
mod checkpoint;
mod clones;
pub mod config;
mod demo;
pub mod log;
mod machine;
mod notify;
mod serve;
mod store_option;
mod templates;
mod top;
mod twin;

use clap::Subcommand;
use std::fmt::Display;

/// The subcommand.
#[derive(Subcommand)]
pub enum Command {
    /// All of it on this machine in a few seconds: guests, a store that is down for a second, a daemon that is killed
    Demo(demo::Demo),
    /// Measure on this machine: restores with and without a working set, and faults
    Bench(bench::Bench),
    /// Measure the memory that clones of one template take on this host
    Clones(clones::Clones),
    /// Serve guests; VMMs connect to the sockets with Firecracker's handshake. SIGTERM drains it: it takes no further guest, and ends with its last one. SIGHUP gives new guests the newest versions of their templates
    Serve(serve::Serve),
    /// Watch a daemon: its guests, its cache, its store
    Top(top::Top),
    /// Make a template of an image of guest memory
    Snapshot(templates::Snapshot),
    /// Make a template of a machine that Cloud Hypervisor sends: `send-migration destination_url=unix:SOCKET,local=on`
    Receive(machine::Receive),
    /// Restore machines from templates, in Cloud Hypervisors that wait for them, and serve their pages: `receive-migration receiver_url=unix:SOCKET,memory_mode=postcopy`
    Restore(machine::Machines),
    /// What `restore` starts, and starts again
    #[command(hide = true)]
    RestoreWorker(machine::Machines),
    /// Make a template of a guest that a daemon serves, while it runs on. The VMM stops it until this says `instant`
    Checkpoint(checkpoint::Checkpoint),
    /// Remove the snapshots of a guest but the last ones
    Retain(checkpoint::Retain),
    /// Read every chunk of a template and its working set, and check them
    Verify(templates::Named),
    /// List the templates of a store
    Ls(store_option::StoreOption),
    /// Remove a template; its chunks go with the next gc
    Rm(templates::Named),
    /// Remove the working set of a template, so that it is recorded anew
    Forget(templates::Named),
    /// Delete the chunks that no template needs, and no host serves; on any host, at any time
    Gc(templates::Collect),
    /// What `serve` starts, and starts again
    #[command(hide = true)]
    Worker(serve::Serve),
    /// What a worker starts whose keeper was killed
    #[command(hide = true)]
    Keeper(serve::Serve),
    /// A process that does what a VMM does, and checks every byte
    #[command(hide = true)]
    Twin(twin::Flags),
}

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command found something wrong: exit status 3.
    #[error("{0}")]
    Found(String),
    /// The command failed: exit status 2.
    #[error("{0}")]
    Other(String),
}

/// Wraps any other error.
fn other(error: impl Display) -> Failure {
    Failure::Other(error.to_string())
}

impl Command {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Self::Demo(demo) => demo.run(),
            Self::Bench(bench) => bench.run(),
            Self::Clones(clones) => clones.run(),
            Self::Serve(serve) => serve.keep(),
            Self::Worker(serve) => serve.work(),
            Self::Keeper(serve) => serve.keep_on(),
            Self::Top(top) => top.run(),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Receive(receive) => receive.run(),
            Self::Restore(machines) => machines.keep(),
            Self::RestoreWorker(machines) => machines.work(),
            Self::Checkpoint(checkpoint) => checkpoint.run(),
            Self::Retain(retain) => retain.run(),
            Self::Verify(named) => named.verify(),
            Self::Ls(store) => templates::list(&store),
            Self::Rm(named) => named.remove(),
            Self::Forget(named) => named.forget(),
            Self::Gc(collect) => collect.run(),
            Self::Twin(twin) => twin.run(),
        }
    }
}

/// Parses a size in bytes: `4096`, `64K`, `256M`, `2G`.
fn size(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.ok_or_else(|| format!("{text:?} is no size: a number, and K, M or G"))
}
