//! Rules that the command lines of `slat` and `slat-bench` share, and a walk over clap's tree that reports each
//! violation. The tests of both programs run the walk, so a new subcommand follows the rules.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::str::Split;

/// The meaning of each short letter: the long name of its flag.
pub const LETTERS: [(char, &str); 20] = [
    ('a', "accesses"),
    ('b', "bytes"),
    ('e', "every"),
    ('f', "format"),
    ('g', "no-manual"),
    ('h', "help"),
    ('i', "iterations"),
    ('l', "lru"),
    ('m', "memory"),
    ('n', "samples"),
    ('o', "output"),
    ('p', "pages"),
    ('q', "quiet"),
    ('s', "slots"),
    ('t', "trace"),
    ('u', "uffd"),
    ('v', "vcpus"),
    ('w', "write-percent"),
    // The letter that KVM's `dirty_log_perf_test` uses.
    ('x', "slots"),
    ('V', "version"),
];

/// The value of a switch. No flag takes `true` or `false`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// Enabled
    On,
    /// Disabled
    Off,
}

impl Switch {
    /// The switch as a boolean.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// The exit statuses and resources of one command: the last lines of its help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takes {
    /// The words of the command, after the program's name.
    pub command: &'static str,
    /// Run time with the default flags.
    pub time: &'static str,
    /// Memory with the default flags.
    pub memory: &'static str,
    /// The exit statuses.
    pub ends: &'static str,
}

/// Adds time, memory and exit statuses to the help of each subcommand of `root`.
#[must_use]
pub fn with_takes(root: Command, all: &[Takes]) -> Command {
    all.iter().fold(root, |root, takes| below(root, takes.command.split(' '), takes))
}

/// Adds time, memory and exit statuses to the help of `command`.
#[must_use]
pub fn takes(command: Command, time: &str, memory: &str, ends: &str) -> Command {
    let help = command.get_after_help().map_or(String::new(), |help| format!("{help}\n\n"));
    command.after_help(format!("{help}Exit status: {ends}.\nTime: {time}. Memory: {memory}."))
}

fn below(root: Command, mut words: Split<'_, char>, of: &Takes) -> Command {
    match words.next() {
        None => takes(root, of.time, of.memory, of.ends),
        Some(first) => root.mut_subcommand(first, |command| below(command, words, of)),
    }
}

/// Returns whether the user typed the flag `id`.
pub fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns one line for each violation of these rules:
///
/// - a short letter has the meaning that [`LETTERS`] gives;
/// - the help of a command that runs something states its exit statuses, time and memory;
/// - a default is printed in the form in which it is typed;
/// - a switch takes `on` or `off`;
/// - a size is accepted as `8G` and as `8GiB`;
/// - every command accepts `-q`.
///
/// `passed` lists the subcommands that another program parses.
pub fn broken(mut root: Command, passed: &[&str]) -> Vec<String> {
    root.build();
    let mut broken = Vec::new();
    walk(&root, passed, &mut broken);
    broken
}

fn walk(command: &Command, passed: &[&str], broken: &mut Vec<String>) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let mut wrong = |what: String| broken.push(format!("{name}: {what}"));
    for arg in command.get_arguments() {
        arguments(command, arg, &mut wrong);
    }
    if !command.get_arguments().any(|arg| arg.get_short() == Some('q')) {
        wrong("it has no flag -q".into());
    }
    let mut subcommands = command.get_subcommands().filter(|below| below.get_name() != "help").peekable();
    if subcommands.peek().is_none() {
        let help = command.clone().render_long_help().to_string();
        for part in ["Exit status: 0 ", "Time: ", "Memory: "] {
            if !help.contains(part) {
                wrong(format!("its help has no `{part}`"));
            }
        }
    }
    for below in subcommands.filter(|below| !passed.contains(&below.get_name())) {
        walk(below, passed, broken);
    }
}

fn arguments(command: &Command, arg: &Arg, wrong: &mut dyn FnMut(String)) {
    let long = arg.get_long().unwrap_or_default();
    for letter in arg.get_short_and_visible_aliases().unwrap_or_default() {
        match LETTERS.iter().find(|(known, _)| *known == letter) {
            Some((_, meaning)) if *meaning == long => {}
            Some((_, meaning)) => wrong(format!("-{letter} is --{long} here, and --{meaning} elsewhere")),
            None => wrong(format!("-{letter}, --{long}, is not among the letters in cli/src/kit/flags.rs")),
        }
    }
    if !arg.get_action().takes_values() {
        return;
    }
    let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if values.iter().any(|value| ["true", "false", "yes", "no"].contains(&value.as_str())) {
        wrong(format!("--{long} takes {values:?}: a switch is on or off"));
    }
    match arg.get_default_values() {
        [] => {}
        [one] if accepts(command, arg, one) => {}
        [one] => wrong(format!("--{long}={} is its default, and refused", one.display())),
        // clap separates the values by spaces.
        many => wrong(format!("--{long} has {} defaults: make them one text", many.len())),
    }
    let value = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    if value.contains("SIZE") {
        let prefix = if value.starts_with("START+") { "0x4000000+" } else { "" };
        let numbers = [4, 64, 512].into_iter().flat_map(|number| ["K", "M", "G"].map(|unit| (number, unit)));
        let sizes = numbers.map(|(number, unit)| format!("{number}{unit}"));
        let taken: Vec<_> =
            sizes.filter(|size| accepts(command, arg, format!("{prefix}{size}").as_ref())).collect();
        let refused = taken.iter().find(|size| !accepts(command, arg, format!("{prefix}{size}iB").as_ref()));
        match refused {
            Some(refused) => wrong(format!("--{long} takes {refused}, and refuses {refused}iB")),
            None if taken.is_empty() => wrong(format!("--{long} takes no size")),
            None => {}
        }
    }
}

/// Returns whether `command` accepts this value, apart from other arguments that it requires.
fn accepts(command: &Command, arg: &Arg, value: &OsStr) -> bool {
    let Some(long) = arg.get_long() else { return true };
    let mut typed = OsString::from(format!("--{long}="));
    typed.push(value);
    let alone = command.clone().mut_args(|arg| arg.required(false)).no_binary_name(true);
    match alone.try_get_matches_from([typed]) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::MissingRequiredArgument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::builder::PossibleValuesParser;

    /// A command whose subcommand violates every rule.
    fn root() -> Command {
        let arg = |name: &'static str| Arg::new(name).long(name);
        let bad = Command::new("bad")
            .arg(arg("passes").short('p'))
            .arg(arg("zoom").short('z'))
            .arg(arg("many").default_values(["1", "2"]))
            .arg(arg("switch").value_parser(PossibleValuesParser::new(["true", "false"])))
            .arg(arg("room").value_name("SIZE").value_parser(["4K", "4M"]));
        let other = arg("empty").default_value("nothing").value_parser(["something"]);
        Command::new("root").subcommand(bad).arg(other)
    }

    #[test]
    fn every_violation_is_reported() {
        let broken = broken(root(), &[]).join("\n");
        for line in [
            "root: it has no flag -q",
            "root bad: it has no flag -q",
            "-p is --passes here, and --pages elsewhere",
            "-z, --zoom, is not among",
            "--many has 2 defaults",
            "--empty=nothing is its default, and refused",
            "a switch is on or off",
            "--room takes 4K, and refuses 4KiB",
            "no `Exit status: 0 `",
            "no `Time: `",
            "no `Memory: `",
        ] {
            assert!(broken.contains(line), "{line}:\n{broken}");
        }
        assert_eq!(broken.lines().count(), 11, "{broken}");
    }

    #[test]
    fn the_help_of_a_command_states_time_and_memory() {
        let takes = Takes { command: "bad", time: "1 s", memory: "2 MiB", ends: "0 always" };
        let mut root = with_takes(root(), &[takes]);
        let bad = root.find_subcommand_mut("bad").map(|bad| bad.render_long_help().to_string());
        assert!(bad.unwrap().ends_with("Exit status: 0 always.\nTime: 1 s. Memory: 2 MiB.\n"));
    }

    #[test]
    fn typed_flags_are_distinguished_from_defaults() {
        let arg = |name: &'static str| Arg::new(name).long(name).default_value("1");
        let command = Command::new("one").args([arg("a"), arg("b")]);
        let matches = command.try_get_matches_from(["one", "--b", "1"]).unwrap();
        assert_eq!((is_typed(&matches, "a"), is_typed(&matches, "b")), (false, true));
    }
}
