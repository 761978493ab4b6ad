//! A circuit breaker. After several failures in a row it lets no call through for a while, and then one as a test.

use std::time::Duration;

/// When the breaker opens, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of failures in a row that open it.
    pub failures: u32,
    /// First pause; each further one is twice as long.
    pub pause: Duration,
    /// Longest pause.
    pub most: Duration,
}

/// State of the breaker.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Number of pauses since a call succeeded.
    pauses: u32,
    /// Time until which no call is made.
    until: Option<Duration>,
    /// A test call is under way.
    tries: bool,
}

/// Purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Call,
    /// A test whether the store is back; the other calls wait for it.
    Try,
}

impl Breaker {
    /// Asks whether a call may be made now. `Err`: not for this time.
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

    /// Notes the end of a call. Returns whether that opened the breaker.
    pub fn end(&mut self, turn: Turn, is_good: bool, now: Duration, limits: &Limits) -> bool {
        self.tries &= turn != Turn::Try;
        if is_good {
            *self = Self { tries: self.tries, ..Self::default() };
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        // Calls that began before it opened have no new information.
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
        // Pauses of 100, 200, 250, 250 ms. After each, one call goes through.
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
