//! The metrics of a worker: families, and Prometheus' text of them.
//!
//! A series belongs to a host or to a template, never to a guest: a fleet has too many guests. Counters begin at 0 in
//! each worker, which Prometheus expects of them.

use super::monitor::{Monitor, Totals};
use super::request::Listed;
use super::worker::WorkerError;
use crate::cache::Source;
use crate::latency::Times;
use crate::store::StoreStats;
use crate::wire::WireError;
use std::fmt::Write as _;

/// Metrics of one name.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in a sentence.
    pub help: &'static str,
    samples: Vec<(Vec<String>, Sample)>,
}

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// Numbers of times up to bounds.
    Histogram,
}

impl Kind {
    /// Returns its name in Prometheus' text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

#[derive(Debug, Clone)]
enum Sample {
    Number(f64),
    Times(Box<Times>),
}

/// Reasons for which a connection is refused.
const REASONS: [&str; 7] =
    ["connections", "descriptors", "handshake", "no_handshake", "store", "system", "template"];

impl WorkerError {
    /// Returns the reason in the metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Wire(WireError::Closed(_) | WireError::Late(..)) => "no_handshake",
            Self::Wire(_) => "handshake",
            Self::Store(error) if error.may_pass() => "store",
            Self::Store(_) => "template",
            Self::Io(_) => "system",
            Self::Keeper(..) => "descriptors",
            Self::Killed(error) => error.reason(),
        }
    }
}

/// Counter of the store.
type Count = fn(&StoreStats) -> u64;
/// Value of a template.
type Value = fn(&Totals) -> f64;

#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(
        &mut self,
        name: &str,
        kind: Kind,
        labels: &'static [&'static str],
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<String>, Sample)>,
    ) {
        let (name, samples) = (format!("slat_pager_{name}"), samples.into_iter().collect());
        self.0.push(Family { name, kind, labels, help, samples });
    }

    /// Adds a family of at most one series.
    fn one(&mut self, name: &str, kind: Kind, help: &'static str, value: impl Into<Option<f64>>) {
        let value = value.into().map(|value| (Vec::new(), Sample::Number(value)));
        self.add(name, kind, &[], help, value);
    }

    /// Adds a family of one label.
    fn by(
        &mut self,
        name: &str,
        kind: Kind,
        label: &'static [&'static str; 1],
        help: &'static str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        let samples = values.into_iter().map(|(of, value)| (vec![of], Sample::Number(value)));
        self.add(name, kind, label, help, samples);
    }
}

impl Monitor {
    /// Returns the metrics. Asks the store and other daemons, and waits for each for a moment.
    #[doc(hidden)]
    pub fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        self.of_daemon(&mut families);
        self.of_guests(&mut families);
        self.of_store(&mut families);
        families.0
    }

    fn of_daemon(&self, families: &mut Families) {
        use Kind::{Counter, Gauge};
        let (counts, others) = (self.0.health.counts(), self.others());
        let build = [(vec![env!("CARGO_PKG_VERSION").to_owned()], Sample::Number(1.0))];
        families.add("build_info", Gauge, &["version"], "The version of slat-pager.", build);
        let is_ready = f64::from(u8::from(self.is_ready().is_ok()));
        families.one("ready", Gauge, "1 if new guests are served, as /ready says; else 0.", is_ready);
        let drains = f64::from(u8::from(counts.drains));
        families.one("draining", Gauge, "1 if the daemon takes no further guest; else 0.", drains);
        let restarts = counts.restarts as f64;
        families.one("worker_restarts_total", Counter, "Times that the keeper restarted a worker.", restarts);
        let mut refusals = self.refusals();
        *refusals.entry("connections").or_default() += counts.closed;
        let refusals = REASONS.map(|reason| (reason.into(), refusals.get(reason).map_or(0.0, |n| *n as f64)));
        families.by(
            "refusals_total",
            Counter,
            &["reason"],
            "Connections of VMMs that were refused, by reason.",
            refusals,
        );
        let other = |value: fn(&Listed) -> u64| {
            let one = |other: &Listed| (other.keeper.to_string(), value(other) as f64);
            others.iter().map(one).collect::<Vec<_>>()
        };
        let help = "Guests of another daemon with the same control path.";
        families.by("other_guests", Gauge, &["keeper"], help, other(|other| other.sessions.len() as u64));
        let help = "Waiting faults of another daemon's guests.";
        let waiting = other(|other| other.sessions.iter().map(|session| session.waiting).sum());
        families.by("other_faults_waiting", Gauge, &["keeper"], help, waiting);
    }

    fn of_guests(&self, families: &mut Families) {
        use Kind::{Counter, Gauge, Histogram};
        let sums = self.sums();
        let of_templates: [(&str, Kind, &str, Value); 12] = [
            ("guests", Gauge, "Guests that are served.", |of| of.live as f64),
            ("guests_ended_total", Counter, "Guests that have ended.", |of| of.ended as f64),
            (
                "guests_without_template",
                Gauge,
                "Guests of an earlier worker that wait until their template can be opened.",
                |of| of.without_template as f64,
            ),
            ("faults_waiting", Gauge, "Faults that wait for the store, the swap file, or memory.", |of| {
                of.stats.waiting as f64
            }),
            (
                "fault_oldest_wait_seconds",
                Gauge,
                "Age of the oldest waiting fault, or wait for a template; 0: none waits.",
                |of| of.oldest.as_secs_f64(),
            ),
            ("fault_retries_total", Counter, "Repeated tries of faults.", |of| of.stats.again as f64),
            ("pages_filled_total", Counter, "Pages that were filled.", |of| of.stats.filled as f64),
            (
                "pages_prefetched_total",
                Counter,
                "Pages that were filled ahead of faults, from a working set.",
                |of| of.stats.ahead as f64,
            ),
            (
                "prefetch_pending_chunks",
                Gauge,
                "Chunks and packs of working sets that are still to be filled ahead.",
                |of| of.stats.chunks_left as f64,
            ),
            (
                "pages_poisoned_total",
                Counter,
                "Pages that were given up, because the store lost them.",
                |of| of.stats.poisoned as f64,
            ),
            ("pages_swapped_total", Counter, "Cold pages that were written to swap files.", |of| {
                of.stats.reclaimed as f64
            }),
            ("removals_total", Counter, "Removals of pages by guests, such as those of balloons.", |of| {
                of.stats.removes as f64
            }),
        ];
        for (name, kind, help, value) in of_templates {
            let samples = sums.templates.iter().map(|(template, of)| (template.clone(), value(of)));
            families.by(name, kind, &["template"], help, samples);
        }
        let times = Source::ALL.into_iter().zip(sums.times);
        let times = times.map(|(source, times)| (vec![source.name().into()], Sample::Times(Box::new(times))));
        families.add(
            "fault_duration_seconds",
            Histogram,
            &["source"],
            "Time from the read of a fault until its page was present, by the source of the page.",
            times,
        );
        families.add(
            "prefetch_duration_seconds",
            Histogram,
            &[],
            "Time from the begin of a guest until its working set was filled.",
            [(Vec::new(), Sample::Times(Box::new(sums.prefetch)))],
        );
    }

    fn of_store(&self, families: &mut Families) {
        use Kind::{Counter, Gauge};
        let cache = self.0.cache.stats();
        families.one("cache_hits_total", Counter, "Chunks that were in the cache.", cache.hits as f64);
        let help = "Chunks that were read from the store.";
        families.one("cache_misses_total", Counter, help, cache.misses as f64);
        families.one("cache_evictions_total", Counter, "Chunks that left the cache.", cache.evicted as f64);
        families.one("cache_bytes", Gauge, "Bytes in the cache.", cache.bytes as f64);
        families.one("cache_limit_bytes", Gauge, "Limit of the cache.", self.0.cache.limit() as f64);

        let store = self.store();
        let is_up = store.map(|_| f64::from(u8::from(self.store_check().is_ok())));
        let help = "1 if the store answers; 0 if it does not. chunks_lost tells what it has lost.";
        families.one("store_up", Gauge, help, is_up);
        let counters: [(&str, &str, Count); 9] = [
            ("store_reads_total", "Reads that were asked for.", |store| store.reads),
            ("store_read_bytes_total", "Bytes that were read.", |store| store.bytes),
            ("store_other_calls_total", "Other calls that were asked for.", |store| store.others),
            ("store_failures_total", "Tries of calls that failed.", |store| store.failures),
            ("store_retries_total", "Tries of calls after a failure.", |store| store.retries),
            ("store_hedges_total", "Reads that were made twice because they took long.", |store| {
                store.hedges
            }),
            ("store_hedges_won_total", "Second reads that answered first.", |store| store.hedges_won),
            ("store_breaks_total", "Times that calls were stopped after failures.", |store| store.breaks),
            ("store_refused_calls_total", "Calls that were not made meanwhile.", |store| store.refused),
        ];
        for (name, help, value) in counters {
            families.one(name, Counter, help, store.map(|store| value(&store) as f64));
        }
        self.of_losses(families);
        let lease = self.lease();
        let is_there = store.is_some();
        let renewals = is_there.then_some(lease.renewals as f64);
        families.one("lease_renewals_total", Counter, "Times that the lease was written.", renewals);
        let failures = is_there.then_some(lease.failures as f64);
        let help = "Times that the lease could not be written.";
        families.one("lease_renewal_failures_total", Counter, help, failures);
        let help = "Time since the lease was written; after an hour a collection may delete what guests use.";
        families.one("lease_age_seconds", Gauge, help, lease.age.map(|age| age.as_secs_f64()));
    }

    fn of_losses(&self, families: &mut Families) {
        let mut sums = std::collections::BTreeMap::<String, [u64; 3]>::new();
        for loss in self.losses() {
            let sum = sums.entry(self.label(&loss.template)).or_default();
            let more = [loss.lost, loss.missing, loss.damaged];
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        families.by(
            "chunks_lost",
            Kind::Gauge,
            &["template"],
            "Chunks that guests needed, and that the last read found missing or damaged.",
            sums.iter().map(|(template, [lost, ..])| (template.clone(), *lost as f64)),
        );
        let errors = sums.iter().flat_map(|(template, [_, missing, damaged])| {
            [("missing", missing), ("damaged", damaged)]
                .map(|(reason, count)| (vec![template.clone(), reason.into()], Sample::Number(*count as f64)))
        });
        families.add(
            "chunk_read_errors_total",
            Kind::Counter,
            &["template", "reason"],
            "Reads of chunks that found none, or a damaged one.",
            errors,
        );
    }
}

/// Formats Prometheus' text.
pub(super) fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { name, kind, labels, help, samples } in families {
        _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        for (values, sample) in samples {
            match sample {
                Sample::Number(value) => line(&mut text, name, "", labels, values, None, *value),
                Sample::Times(times) => {
                    let count = times.count();
                    let bounds = times.up_to().map(|(bound, count)| (bound.to_string(), count));
                    for (bound, count) in bounds.chain([("+Inf".into(), count)]) {
                        line(&mut text, name, "_bucket", labels, values, Some(&bound), count as f64);
                    }
                    line(&mut text, name, "_sum", labels, values, None, times.seconds());
                    line(&mut text, name, "_count", labels, values, None, count as f64);
                }
            }
        }
    }
    text
}

fn line(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &[&str],
    values: &[String],
    bound: Option<&str>,
    value: f64,
) {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut pairs: Vec<_> =
        labels.iter().zip(values).map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    pairs.extend(bound.map(|bound| format!("le=\"{bound}\"")));
    let pairs = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
    _ = writeln!(text, "{name}{suffix}{pairs} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let samples = vec![(vec!["/a \"b\\\n".to_owned()], Sample::Number(0.5))];
        let (name, kind, labels, help) = ("c".to_owned(), Kind::Gauge, &["template"], "Help.");
        let family = Family { name, kind, labels, help, samples };
        let expected = "# HELP c Help.\n# TYPE c gauge\nc{template=\"/a \\\"b\\\\\\n\"} 0.5\n";
        assert_eq!(text(&[family]), expected);
    }
}
