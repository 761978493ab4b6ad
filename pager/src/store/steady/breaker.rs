//! A breaker: once calls fail one after the other, none is made for a while, and then one to see.

use std::time::Duration;

/// When it opens, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Failures in a row.
    pub failures: u32,
    /// The first pause; each one that follows is twice as long.
    pub pause: Duration,
    /// The longest one.
    pub most: Duration,
}

/// What is known of a place.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Pauses since a call succeeded.
    pauses: u32,
    /// Until when no call is made.
    until: Option<Duration>,
    /// A call is under way that shows whether the place is back.
    tries: bool,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Call,
    /// It shows whether the place is back: the others wait for it.
    Try,
}

impl Breaker {
    /// Whether a call may be made now. `Err`: not for so long.
    pub fn begin(&mut self, now: Duration) -> Result<Turn, Duration> {
        match self.until {
            None => Ok(Turn::Call),
            Some(until) if now < until => Err(until.saturating_sub(now)),
            Some(_) if self.tries => Err(Duration::ZERO),
            Some(_) => {
                self.tries = true;
                Ok(Turn::Try)
            }
        }
    }

    /// A call has ended. Whether that opened it.
    pub fn end(&mut self, turn: Turn, is_good: bool, now: Duration, limits: &Limits) -> bool {
        self.tries &= turn != Turn::Try;
        if is_good {
            *self = Self { tries: self.tries, ..Self::default() };
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        // Calls that began before it opened say nothing new.
        if turn == Turn::Try || self.until.is_none() && self.failures >= limits.failures {
            let pause = limits.pause.saturating_mul(1 << self.pauses.min(16)).min(limits.most);
            self.until = Some(now + pause);
            self.pauses += 1;
            return true;
        }
        false
    }

    pub fn is_open(&self) -> bool {
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_with_a_success() {
        let ms = Duration::from_millis;
        let limits = Limits { failures: 3, pause: ms(100), most: ms(250) };
        let mut breaker = Breaker::default();
        for is_good in [false, false, true, false, false] {
            assert_eq!(breaker.begin(ms(0)), Ok(Turn::Call));
            assert!(!breaker.end(Turn::Call, is_good, ms(0), &limits));
        }
        assert!(breaker.end(Turn::Call, false, ms(10), &limits) && breaker.is_open());
        assert!(!breaker.end(Turn::Call, false, ms(20), &limits), "one that began before");
        // Pauses: 100, 200, 250, 250 ms. After each, one call is let through.
        let mut now = ms(110);
        for pause in [200, 250, 250] {
            assert_eq!(breaker.begin(now.saturating_sub(ms(1))), Err(ms(1)));
            assert_eq!(breaker.begin(now), Ok(Turn::Try));
            assert_eq!(breaker.begin(now), Err(ms(0)), "one is under way");
            assert!(breaker.end(Turn::Try, false, now, &limits));
            now += ms(pause);
        }
        assert_eq!(breaker.begin(now), Ok(Turn::Try));
        assert!(!breaker.end(Turn::Try, true, now, &limits) && !breaker.is_open());
        assert_eq!(breaker.begin(now), Ok(Turn::Call));
    }
}
