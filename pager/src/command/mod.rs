//! The subcommands.

mod bench;
mod checkpoint;
mod clones;
pub mod config;
mod ctl;
mod demo;
mod events;
mod failure;
pub mod log;
mod machine;
mod notify;
mod serve;
mod store_option;
mod templates;
mod top;
mod twin;
mod watch;

pub use failure::Failure;

use clap::Subcommand;

/// The subcommand.
#[derive(Subcommand)]
pub enum Command {
    /// Run guests on this machine while the store is down and the daemon is killed, and check every byte; takes seconds
    Demo(demo::Demo),
    /// Serve guests; VMMs connect to the sockets with Firecracker's handshake
    ///
    /// SIGTERM drains the daemon: it takes no further guest, and ends with its last guest. A second SIGTERM, or SIGINT, ends
    /// the keeper at once; the worker serves its guests until they end. SIGHUP gives new guests the newest versions of their
    /// templates.
    #[command(after_long_help = events::help())]
    Serve(serve::Serve),
    /// List, add and remove a daemon's sockets and sessions; reload templates; drain
    Ctl(ctl::Ctl),
    /// Show a daemon's guests, cache and store, live
    Top(top::Top),
    /// Make a template of an image of guest memory
    Snapshot(templates::Snapshot),
    /// Make a template of another one, with other bytes in some pages: a guest's own network identity, host name or secrets
    ///
    /// It shares the chunks, the working set and the memory of clones with its base, and stays when the base is replaced or
    /// removed. An offset is that of the base's memory: on x86 a guest-physical address below 3 GiB; above 4 GiB, that address
    /// less the gap between both.
    Overlay(templates::Overlay),
    /// Make a template of a running guest that a daemon serves
    ///
    /// The VMM stops its vCPUs, saves its own state, and calls this. It lets the vCPUs run when this prints `instant`; the
    /// pages are stored meanwhile.
    Checkpoint(checkpoint::Checkpoint),
    /// Remove all snapshots of a guest except the last ones
    Retain(checkpoint::Retain),
    /// List the templates of a store
    Ls(store_option::StoreOption),
    /// Read and check every chunk of a template, and its working set
    Verify(templates::Named),
    /// Remove the working set of a template, so that its next guest is recorded
    Forget(templates::Named),
    /// Remove a template; the next `gc` deletes its chunks
    Rm(templates::Named),
    /// Delete the chunks that no template needs and no host serves; on any host, at any time
    Gc(templates::Collect),
    /// Check a store without reading its chunks; rebuild a damaged catalog
    Fsck(templates::Check),
    /// Make a template of a machine that Cloud Hypervisor sends
    ///
    /// The VMM sends it by `send-migration destination_url=unix:SOCKET,local=on`.
    Receive(machine::Receive),
    /// Restore machines in Cloud Hypervisor from templates, and serve their pages
    ///
    /// The VMM waits by `receive-migration receiver_url=unix:SOCKET,memory_mode=postcopy`.
    Restore(machine::Machines),
    /// Measure on this machine: the time of restores with and without a working set, and of faults
    Bench(bench::Bench),
    /// Measure the memory that clones of one template take on this host
    Clones(clones::Clones),
    /// The worker of `serve`
    #[command(hide = true)]
    Worker(serve::Serve),
    /// The next keeper of `serve`, started by a worker whose keeper was killed
    #[command(hide = true)]
    Keeper(serve::Serve),
    /// The worker of `restore`
    #[command(hide = true)]
    RestoreWorker(machine::Machines),
    /// A simulated VMM, which checks every byte of its memory
    #[command(hide = true)]
    Twin(twin::Flags),
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
            Self::Ctl(ctl) => ctl.run(),
            Self::Top(top) => top.run(),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Overlay(overlay) => overlay.run(),
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
            Self::Fsck(check) => check.run(),
            Self::Twin(twin) => twin.run(),
        }
    }
}
