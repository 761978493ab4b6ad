//! Rates per second: the difference of two samples.

use crate::sample::Sample;
use serde::Serialize;

/// Rates between two samples, per second.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Rates {
    /// Time between the samples.
    pub seconds: f64,
    pub accesses: f64,
    pub faults: f64,
    pub map: f64,
    pub permission: f64,
    pub spurious: f64,
    pub mmio: f64,
    pub retries: f64,
    /// Shootdowns, and the edits that they settled.
    pub flushes: f64,
    pub flushes_requested: f64,
    /// By cause, largest first. Causes that never occurred are left out.
    pub flushes_by: Vec<Cause>,
    /// TLB hits in percent of lookups.
    pub tlb_hit_percent: f64,
    /// Time that all vCPUs together waited for the lock, in seconds per second.
    pub lock_wait: f64,
    /// Pages written: as the dirty log reports, or pages whose Dirty bit was set for the first time.
    pub dirty: f64,
    pub swapped_out: f64,
    pub swapped_in: f64,
    pub vcpus: Vec<Vcpu>,
}

/// Shootdowns of one cause.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Cause {
    pub cause: String,
    pub flushes: f64,
    pub pages: f64,
}

/// The rates of one vCPU.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Vcpu {
    pub accesses: f64,
    pub faults: f64,
    pub tlb_hit_percent: f64,
}

impl Rates {
    /// The rates from `before` to `now`. [`Sample::default`] is the beginning of a run.
    pub fn between(before: &Sample, now: &Sample) -> Self {
        // Two samples in the same millisecond count as 1 ms apart, so no rate is infinite.
        let seconds = now.at_ms.saturating_sub(before.at_ms).max(1) as f64 / 1e3;
        let rate = |of: &dyn Fn(&Sample) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
        Self {
            seconds,
            accesses: rate(&|sample| sample.accesses),
            faults: rate(&|sample| sample.faults.total),
            map: rate(&|sample| sample.faults.map),
            permission: rate(&|sample| sample.faults.permission),
            spurious: rate(&|sample| sample.faults.spurious),
            mmio: rate(&|sample| sample.faults.mmio),
            retries: rate(&|sample| sample.faults.retry),
            flushes: rate(&|sample| sample.flushes.paid),
            flushes_requested: rate(&|sample| sample.flushes.requested),
            flushes_by: causes(before, now, seconds),
            tlb_hit_percent: hit_percent(
                (before.tlb.hits, before.tlb.misses),
                (now.tlb.hits, now.tlb.misses),
            ),
            lock_wait: rate(&|sample| sample.lock.wait_ns) / 1e9,
            dirty: rate(&|sample| sample.dirty.pages),
            swapped_out: rate(&|sample| sample.swap.unwrap_or_default().out),
            swapped_in: rate(&|sample| sample.swap.unwrap_or_default().r#in),
            vcpus: vcpus(before, now, seconds),
        }
    }
}

fn causes(before: &Sample, now: &Sample, seconds: f64) -> Vec<Cause> {
    let was = |cause: &str| before.flushes_by.iter().find(|of| of.cause == cause).map(|of| of.flushes);
    let mut causes: Vec<_> = now
        .flushes_by
        .iter()
        .map(|of| {
            let was = was(&of.cause).unwrap_or_default();
            Cause {
                cause: of.cause.clone(),
                flushes: of.flushes.paid.saturating_sub(was.paid) as f64 / seconds,
                pages: of.flushes.pages.saturating_sub(was.pages) as f64 / seconds,
            }
        })
        .collect();
    // The sort is stable: equal rates keep the order of the run.
    causes.sort_by(|one, other| other.flushes.total_cmp(&one.flushes));
    causes
}

fn vcpus(before: &Sample, now: &Sample, seconds: f64) -> Vec<Vcpu> {
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let vcpu = |(index, now): (usize, &crate::figures::VcpuCounts)| {
        let before = before.vcpus.get(index).copied().unwrap_or_default();
        Vcpu {
            accesses: rate(before.accesses, now.accesses),
            faults: rate(before.faults, now.faults),
            tlb_hit_percent: hit_percent((before.hits, before.misses), (now.hits, now.misses)),
        }
    };
    now.vcpus.iter().enumerate().map(vcpu).collect()
}

/// Hits as a share of lookups; 100% without lookups.
fn hit_percent(before: (u64, u64), now: (u64, u64)) -> f64 {
    let (hits, misses) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    if hits + misses == 0 { 100.0 } else { 100.0 * hits as f64 / (hits + misses) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::sample;

    #[test]
    fn rates_are_differences_by_seconds() {
        let rates = Rates::between(&sample(2), &sample(4));
        assert_eq!((rates.seconds, rates.accesses, rates.map), (1.0, 2_200_000.0, 3_000.0));
        assert_eq!((rates.flushes, rates.flushes_requested, rates.dirty), (1_180.0, 3_540.0, 12_000.0));
        let causes: Vec<_> = rates.flushes_by.iter().map(|of| (of.cause.as_str(), of.flushes)).collect();
        assert_eq!(causes, [("migrate", 980.0), ("dirty-log", 200.0), ("write-protect", 0.0)]);
        assert!((rates.tlb_hit_percent - 97.3).abs() < 0.1);
        let vcpus: Vec<_> = rates.vcpus.iter().map(|vcpu| vcpu.accesses).collect();
        assert_eq!(vcpus, [1_200_000.0, 600_000.0, 400_000.0]);
    }

    #[test]
    fn the_first_sample_tells_of_the_run_so_far() {
        let rates = Rates::between(&Sample::default(), &sample(4));
        assert_eq!((rates.seconds, rates.accesses), (2.0, 2_200_000.0));
    }

    #[test]
    fn rates_are_finite_and_not_negative() {
        let rates = Rates::between(&sample(4), &sample(4));
        assert_eq!((rates.accesses, rates.tlb_hit_percent), (0.0, 100.0));
        let back = Rates::between(&sample(4), &sample(2));
        assert!(back.faults == 0.0 && back.vcpus.iter().all(|vcpu| vcpu.accesses == 0.0));
        let most = Rates::between(&Sample::default(), &Sample { accesses: u64::MAX, ..Sample::default() });
        assert!(most.accesses.is_finite());
    }
}
