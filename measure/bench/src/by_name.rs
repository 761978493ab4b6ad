//! Subcommands that are named after scenarios, as a part of clap's tree.

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};

/// A value that is chosen by the name of a scenario: each has a subcommand.
pub trait ByName: Sized {
    /// The subcommands.
    fn commands() -> Vec<Command>;
    /// The value that was typed behind a name; `None` where no scenario has that name.
    fn parse(name: &str, matches: &ArgMatches) -> Option<Result<Self, clap::Error>>;
}

/// [`ByName`], as a part of clap's tree.
pub struct Chosen<T>(pub Box<T>);

impl<T: ByName> Subcommand for Chosen<T> {
    fn augment_subcommands(command: Command) -> Command {
        let mut commands = T::commands();
        commands.sort_by_key(|command| command.get_name().to_owned());
        command.subcommands(commands)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        T::commands().iter().any(|command| command.get_name() == name)
    }
}

impl<T: ByName> FromArgMatches for Chosen<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let parsed = matches.subcommand().and_then(|(name, matches)| T::parse(name, matches));
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        parsed.unwrap_or_else(|| Err(missing())).map(|chosen| Self(Box::new(chosen)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
