//! The events of the log.

macro_rules! events {
    ($($event:ident $name:literal $meaning:literal)*) => {
        /// A thing that an operator must know. Each kind has a line in `serve --help`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Event {
            $($event),*
        }

        impl Event {
            pub const ALL: &[Self] = &[$(Self::$event),*];

            /// Returns the value of the field `event`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$event => $name),*
                }
            }

            const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$event => $meaning),*
                }
            }
        }
    };
}

events! {
    Worker "worker" "a worker started"
    Keeper "keeper" "a keeper started, because the one before was killed"
    Ready "ready" "a worker was given all guests; from now on the keeper may be killed, too"
    Restarts "restarts" "a worker ended (`end`); the next one starts after `pause` seconds"
    Opened "opened" "new guests get this version of a template after a reload"
    NotOpened "not opened" "a template cannot be opened, with the reason"
    Waits "waits" "a guest has had a waiting fault for a second, with the reason; again every minute"
    GoesOn "goes on" "a guest has no waiting fault any more"
    Ended "ended" "a guest ended, with its counters"
    Refused "refused" "a VMM was refused, with the reason"
    Failed "failed" "a machine could not be restored in its VMM, with the reason (the command `restore`)"
    Closes "closes" "connections were closed, because a process or a socket had too many"
    StoreDown "store down" "calls of the store failed in a row, with the last failure; guests may wait"
    StoreUp "store up" "the store answers again"
    Lost "lost" "chunks of a template are missing or damaged in the store; their guests wait or get SIGBUS"
    LeaseOld "lease old" "the lease could not be renewed for ten minutes; at an hour, `gc` may delete what guests use"
    TakesOver "takes over" "another process listened on so many of the sockets"
    NotReclaimed "not reclaimed" "the kernel refuses to move cold pages of a guest, with the reason"
    DiskCache "disk cache" "the folder of --disk-cache cannot be used, with the reason; or it can be used again"
    NoMetrics "no metrics yet" "the address of --metrics is in use"
    Metrics "metrics" "the address of --metrics is free now, and answers"
    Drains "drains" "the daemon takes no further guest"
    Omitted "omitted" "so many lines of an event were left out: at most 20 a second are written"
    LostLines "lost lines" "the reader of the log did not keep up"
}

/// Returns the last part of `serve --help`.
pub fn help() -> String {
    let head = "The log, on standard error, has one JSON object a line. Its field `event` is one of:";
    let lines = Event::ALL.iter().map(|event| format!("  {:<16}{}", event.name(), event.meaning()));
    std::iter::once(head.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
}
