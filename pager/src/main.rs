//! The command `slat-pager` serves guests from snapshot templates, and maintains the templates.

mod command;

use clap::{CommandFactory, Parser};
use command::{Command, Failure};
use std::ffi::OsString;
use std::process::ExitCode;

/// Serves the memory of microVMs from snapshots, by userfaultfd.
#[derive(Parser)]
#[command(name = "slat-pager", version, max_term_width = 100, args_override_self = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

/// Returns the command line, with the flags of its configuration. `SOCKET FILE`, the command line of Firecracker's
/// example handlers, means `serve --image SOCKET=FILE`.
fn words() -> Result<Vec<OsString>, String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = Program::command();
    let is_command = |word: &OsString| command.find_subcommand(word).is_some() || *word == *"help";
    match &words[..] {
        [program, socket, file] if !is_command(socket) && !socket.to_string_lossy().starts_with('-') => {
            let mut image = socket.clone();
            image.push("=");
            image.push(file);
            Ok(vec![program.clone(), "serve".into(), "--image".into(), image])
        }
        _ => command::config::expand(words, &command),
    }
}

fn main() -> ExitCode {
    let result = words().map_err(Failure::Other).and_then(|words| {
        let mut program = Program::parse_from(&words);
        let after: Vec<OsString> = words.into_iter().skip(2).collect();
        match &mut program.command {
            Command::Serve(serve) | Command::Worker(serve) | Command::Keeper(serve) => serve.words = after,
            Command::Restore(machines) => machines.words = after,
            _ => {}
        }
        program.command.run()
    });
    match result {
        Ok(()) => {
            command::log::flush();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            command::log::last(format!("slat-pager: {failure}\n"));
            match failure {
                Failure::Found(_) => ExitCode::from(3),
                Failure::Other(_) => ExitCode::from(2),
            }
        }
    }
}
