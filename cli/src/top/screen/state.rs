//! The state that keys change.

use super::keys::Key;
use crate::sample::Heat;
use std::time::Duration;

/// The property that the map shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shown {
    /// The time since pages were used.
    #[default]
    Used,
    /// Written pages.
    Written,
    /// Pages that are parts of large pages.
    Large,
}

impl Shown {
    /// The next choice in turn.
    fn next(self) -> Self {
        match self {
            Self::Used => Self::Written,
            Self::Written => Self::Large,
            Self::Large => Self::Used,
        }
    }

    /// Its name, the names of its lowest and its highest digit, and its digits.
    pub fn of(self, heat: &Heat) -> (&'static str, [&'static str; 2], &str) {
        match self {
            Self::Used => ("in use", ["cold", "hot"], &heat.used),
            Self::Written => ("written", ["clean", "written"], &heat.written),
            Self::Large => ("large pages", ["4K", "large"], &heat.large),
        }
    }
}

/// The effect of a key on the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    None,
    Interval(Duration),
    Redraw,
    Quit,
    Interrupt,
}

/// The state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    pub paused: bool,
    pub help: bool,
    pub shown: Shown,
    pub interval: Duration,
}

/// The intervals in milliseconds that `+` and `-` select.
const INTERVALS: [u64; 10] = [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

impl State {
    pub fn new(interval: Duration) -> Self {
        Self { paused: false, help: false, shown: Shown::default(), interval }
    }

    /// Handles a key.
    pub fn key(&mut self, key: Key) -> Action {
        match key {
            Key::Control('c') => return Action::Interrupt,
            Key::Control('l') => return Action::Redraw,
            Key::Char('q') => return Action::Quit,
            Key::Escape if !self.help => return Action::Quit,
            Key::Char(' ') => self.paused = !self.paused,
            Key::Char('h') => self.shown = self.shown.next(),
            Key::Char('?') | Key::F1 => self.help = !self.help,
            Key::Escape => self.help = false,
            Key::Char('+' | '=') => {
                return self.go_to(INTERVALS.iter().rev().find(|ms| **ms < self.ms()));
            }
            Key::Char('-' | '_') => return self.go_to(INTERVALS.iter().find(|ms| **ms > self.ms())),
            _ => {}
        }
        Action::None
    }

    fn ms(&self) -> u64 {
        self.interval.as_millis() as u64
    }

    fn go_to(&mut self, ms: Option<&u64>) -> Action {
        let Some(&ms) = ms else { return Action::None };
        self.interval = Duration::from_millis(ms);
        Action::Interval(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_last_line_says() {
        let mut state = State::new(Duration::from_millis(500));
        assert_eq!(state.key(Key::Char(' ')), Action::None);
        assert!(state.paused);
        state.key(Key::Char(' '));
        assert!(!state.paused);
        let shown = [(); 3].map(|()| {
            state.key(Key::Char('h'));
            state.shown
        });
        assert_eq!(shown, [Shown::Written, Shown::Large, Shown::Used]);
        state.key(Key::Char('?'));
        assert!(state.help);
        assert_eq!(state.key(Key::Escape), Action::None, "it closes the help first");
        assert!(!state.help);
        assert_eq!(state.key(Key::Escape), Action::Quit);
        assert_eq!(state.key(Key::Char('q')), Action::Quit);
        assert_eq!(state.key(Key::Char('c')), Action::None);
        assert_eq!(state.key(Key::Control('c')), Action::Interrupt);
        assert_eq!(state.key(Key::Control('l')), Action::Redraw);
    }

    #[test]
    fn intervals_go_up_and_down_and_stop_at_the_ends() {
        // An interval of the user's own stays between the fixed ones.
        let mut state = State::new(Duration::from_millis(700));
        let ms = |state: &mut State, key| match state.key(Key::Char(key)) {
            Action::Interval(every) => every.as_millis(),
            _ => 0,
        };
        assert_eq!([(); 5].map(|()| ms(&mut state, '+')), [500, 200, 100, 50, 0]);
        assert_eq!([(); 10].map(|()| ms(&mut state, '-'))[7..], [30_000, 60_000, 0]);
    }
}
