//! How long each step took, beside what it should take. More than that is reported, and is no failure.

use std::fmt;
use std::time::Duration;

/// Steps in the order in which they were run.
#[derive(Default)]
pub struct Times(Vec<Time>);

struct Time {
    name: &'static str,
    took: Duration,
    budget: Duration,
}

impl Times {
    /// Notes a step, and returns the line that says it.
    pub fn add(&mut self, name: &'static str, took: Duration, budget: Duration) -> String {
        let time = Time { name, took, budget };
        let line = format!("-- {name}: {}", time.said());
        self.0.push(time);
        line
    }
}

impl Time {
    fn said(&self) -> String {
        let over = if self.took > self.budget { ", OVER" } else { "" };
        format!("{}s (budget {}s{over})", self.took.as_secs(), self.budget.as_secs())
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|time| writeln!(f, "  {:<40} {}", time.name, time.said()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_over_its_budget_is_reported() {
        let mut times = Times::default();
        let seconds = Duration::from_secs;
        assert_eq!(times.add("loom", seconds(42), seconds(60)), "-- loom: 42s (budget 60s)");
        assert_eq!(times.add("model", seconds(61), seconds(60)), "-- model: 61s (budget 60s, OVER)");
        assert_eq!(times.to_string().lines().count(), 2);
    }
}
