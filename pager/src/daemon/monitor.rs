//! State of a worker for operators: its guests, its cache, its store, and its health.

use super::health::{Check, Health, Probe};
use super::request::{Listed, daemons, list};
use super::sockets::Place;
use crate::cache::{Cache, CacheStats, Source};
use crate::guest::{GuestStats, Waiting, Watch};
use crate::latency::Times;
use crate::store::{LeaseStats, Library, Steady, StoreStats, TemplateLoss};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Most templates that metrics tell apart. Guests of further ones count as those of [`OTHERS`]: an operator may serve an
/// image of its own to each guest.
const MOST_TEMPLATES: usize = 200;
/// No template has this name.
const OTHERS: &str = "(others)";
/// Age of a fault from which on its guest counts as waiting.
const NOTABLE: Duration = Duration::from_secs(1);

/// The guests of a worker, its cache and its store. A clone of the value refers to the same ones.
///
/// ```
/// # use slat_pager::*;
/// # use std::sync::Arc;
/// let monitor = Monitor::new(Arc::new(Cache::new(64 << 20)), None);
/// assert_eq!(monitor.is_healthy(), Ok(()));
/// // No worker runs yet.
/// assert_eq!(monitor.is_ready(), Err("the worker starts".into()));
/// ```
#[derive(Clone)]
pub struct Monitor(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub cache: Arc<Cache>,
    pub probe: Option<Probe>,
    library: OnceLock<Library>,
    guests: Mutex<Guests>,
    pub health: Health,
    /// The path of the control sockets of this host's daemons.
    control: OnceLock<PathBuf>,
    pub listening: Mutex<Option<Listening>>,
}

/// A socket for requests, and its place if it has a path.
pub(super) struct Listening {
    pub socket: OwnedFd,
    pub place: Option<Place>,
}

#[derive(Default)]
struct Guests {
    live: BTreeMap<u64, Live>,
    /// Guests whose template cannot be opened for now, and since when they wait.
    without_template: BTreeMap<u64, (String, Instant)>,
    /// Sums of the guests that have ended, by template. Each template of a guest has an entry.
    ended: BTreeMap<String, Totals>,
    times: [Times; Source::ALL.len()],
    prefetch: Times,
    refusals: BTreeMap<&'static str, u64>,
}

struct Live {
    pid: i32,
    template: String,
    /// The template's name in the metrics.
    label: String,
    watch: Watch,
}

/// Sums over the guests of a template.
#[derive(Clone, Default)]
pub(super) struct Totals {
    pub live: u64,
    pub ended: u64,
    pub stats: GuestStats,
    /// Time for which the oldest fault has waited.
    pub oldest: Duration,
    pub without_template: u64,
}

/// The content of the metrics that comes from guests.
pub(super) struct Sums {
    pub templates: BTreeMap<String, Totals>,
    pub times: [Times; Source::ALL.len()],
    pub prefetch: Times,
}

/// State of a worker at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Moment {
    /// The worker's process id.
    pub worker: u32,
    /// The guests that it serves.
    pub guests: Vec<Serving>,
    /// Number of guests that have ended.
    pub ended: u64,
    /// Counters of the cache.
    pub cache: CacheStats,
    /// Counters of the store, if there is one.
    pub store: Option<StoreStats>,
    /// Templates of which chunks were missing or damaged.
    #[serde(default)]
    pub losses: Vec<TemplateLoss>,
    /// Other daemons with the same control path, such as one that drains.
    #[serde(default)]
    pub others: Vec<Listed>,
}

/// A guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Serving {
    /// The guest's number.
    pub guest: u64,
    /// Process id of its VMM. 0: unknown.
    pub pid: i32,
    /// Name of its template.
    pub template: String,
    /// Counters of the guest.
    pub stats: GuestStats,
    /// Seconds for which its oldest fault has waited.
    #[serde(default)]
    pub oldest: f64,
}

/// A guest that waits.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WaitingGuest {
    /// Its number.
    pub guest: u64,
    /// Process id of its VMM. 0: unknown.
    pub pid: i32,
    /// Number of its faults that wait.
    pub faults: u64,
    /// Time since the oldest one was read.
    pub oldest: Duration,
    /// Why one of them waits.
    pub reason: String,
}

impl Monitor {
    /// Makes a monitor without guests.
    pub fn new(cache: Arc<Cache>, store: Option<Steady>) -> Self {
        let (library, control, listening) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        let (guests, health, probe) = (Mutex::default(), Health::default(), store.map(Probe::new));
        Self(Arc::new(Inner { cache, probe, library, guests, health, control, listening }))
    }

    /// Sets the path of the control socket. State and metrics have the guests of other daemons at this path, too.
    pub fn others_at(&self, control: &Path) {
        _ = self.0.control.set(control.into());
    }

    /// Sets the library that opens the templates.
    pub fn of_library(&self, library: &Library) {
        _ = self.0.library.set(library.clone());
    }

    /// Returns the state of the other daemons that answer.
    pub(super) fn others(&self) -> Vec<Listed> {
        let daemons = self.0.control.get().map(|control| daemons(control)).unwrap_or_default();
        let answers = daemons.iter().filter_map(|daemon| list(daemon).ok());
        answers.filter(|other| other.worker != std::process::id()).collect()
    }

    pub(super) fn begins(&self, guest: u64, pid: i32, template: &str, watch: Watch) {
        let mut guests = self.0.guests.lock();
        let label = label(&guests.ended, template);
        guests.ended.entry(label.clone()).or_default();
        guests.live.insert(guest, Live { pid, template: template.into(), label, watch });
    }

    pub(super) fn ends(&self, guest: u64, stats: &GuestStats) {
        let mut guests = self.0.guests.lock();
        let Some(live) = guests.live.remove(&guest) else { return };
        let totals = guests.ended.entry(live.label).or_default();
        totals.ended += 1;
        totals.add(&GuestStats { waiting: 0, chunks_left: 0, ..stats.clone() });
        live.watch.add_to(&mut guests.times);
        if let Some(took) = live.watch.prefetch() {
            guests.prefetch.add(took);
        }
    }

    /// Notes that a guest waits for its template, or that it does not any more.
    pub(super) fn waits_for_template(&self, guest: u64, template: Option<&str>) {
        let mut guests = self.0.guests.lock();
        match template {
            Some(template) => {
                let label = label(&guests.ended, template);
                guests.ended.entry(label.clone()).or_default();
                guests.without_template.insert(guest, (label, Instant::now()));
            }
            None => _ = guests.without_template.remove(&guest),
        }
    }

    /// Counts a connection that was refused.
    pub(super) fn refuses(&self, reason: &'static str) {
        *self.0.guests.lock().refusals.entry(reason).or_default() += 1;
    }

    /// Returns the current state. Asks other daemons, and waits for their answers for a moment.
    pub fn moment(&self) -> Moment {
        let others = self.others();
        let guests = self.0.guests.lock();
        let serving = |(guest, live): (&u64, &Live)| Serving {
            guest: *guest,
            pid: live.pid,
            template: live.template.clone(),
            stats: live.watch.stats(),
            oldest: live.watch.waiting().map_or(0.0, |waiting| waiting.oldest.as_secs_f64()),
        };
        Moment {
            worker: std::process::id(),
            guests: guests.live.iter().map(serving).collect(),
            ended: guests.ended.values().map(|totals| totals.ended).sum(),
            cache: self.0.cache.stats(),
            store: self.store(),
            losses: self.losses(),
            others,
        }
    }

    /// Returns the sums over guests.
    pub(super) fn sums(&self) -> Sums {
        let guests = self.0.guests.lock();
        let (mut times, mut prefetch) = (guests.times.clone(), guests.prefetch.clone());
        let mut templates = guests.ended.clone();
        for template in self.0.health.templates() {
            templates.entry(label(&templates, &template)).or_default();
        }
        for live in guests.live.values() {
            let totals = templates.entry(live.label.clone()).or_default();
            totals.live += 1;
            totals.add(&live.watch.stats());
            let oldest = live.watch.waiting().map_or(Duration::ZERO, |waiting| waiting.oldest);
            totals.oldest = totals.oldest.max(oldest);
            live.watch.add_to(&mut times);
            if let Some(took) = live.watch.prefetch() {
                prefetch.add(took);
            }
        }
        for (label, since) in guests.without_template.values() {
            let totals = templates.entry(label.clone()).or_default();
            totals.without_template += 1;
            totals.oldest = totals.oldest.max(since.elapsed());
        }
        Sums { templates, times, prefetch }
    }

    /// Returns the number of refused connections by reason, without those that the keeper refused.
    pub(super) fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.0.guests.lock().refusals.clone()
    }

    /// Returns the name of a template in the metrics.
    pub(super) fn label(&self, template: &str) -> String {
        label(&self.0.guests.lock().ended, template)
    }

    /// Returns the guests with faults that have waited for a second.
    pub fn waiting(&self) -> Vec<WaitingGuest> {
        let guests = self.0.guests.lock();
        let waits = |(guest, live): (&u64, &Live)| {
            let Waiting { faults, oldest, reason } = live.watch.waiting()?;
            let waiting = WaitingGuest { guest: *guest, pid: live.pid, faults, oldest, reason };
            (oldest >= NOTABLE).then_some(waiting)
        };
        guests.live.iter().filter_map(waits).collect()
    }

    /// Returns the counters of the store, if there is one.
    pub fn store(&self) -> Option<StoreStats> {
        self.0.probe.as_ref().map(|probe| probe.store().stats())
    }

    /// Returns the last failure of a call of the store.
    pub fn store_failure(&self) -> String {
        self.0.probe.as_ref().map(|probe| probe.store().last_failure()).unwrap_or_default()
    }

    /// Returns the templates of which chunks were missing or damaged.
    pub fn losses(&self) -> Vec<TemplateLoss> {
        self.0.library.get().map(Library::losses).unwrap_or_default()
    }

    /// Returns the state of the lease.
    pub fn lease(&self) -> LeaseStats {
        self.0.library.get().map(Library::lease).unwrap_or_default()
    }

    /// Returns whether the store answers. Asks it at most every five seconds, and waits for a second at most.
    pub(super) fn store_check(&self) -> Check {
        let needs_catalog = self.lease().age.is_some();
        self.0.probe.as_ref().map_or(Ok(()), |probe| probe.check(needs_catalog))
    }

    /// Returns whether the keeper and this worker live. `Err`: why not, in a line.
    pub fn is_healthy(&self) -> Check {
        self.0.health.is_healthy()
    }

    /// Returns whether new guests are served: the sockets are bound, their templates are open, and the store answers. Waits
    /// for the store for a second at most. `Err`: why not, in a line.
    pub fn is_ready(&self) -> Check {
        self.is_healthy().and_then(|()| self.0.health.is_ready(|| self.store_check()))
    }
}

/// Returns the name of a template in the metrics, which have `known` names so far.
fn label(known: &BTreeMap<String, Totals>, template: &str) -> String {
    let is_known = known.contains_key(template) || known.len() < MOST_TEMPLATES;
    if is_known { template.into() } else { OTHERS.into() }
}

impl Totals {
    /// Adds the counters of a guest.
    fn add(&mut self, more: &GuestStats) {
        let stats = &mut self.stats;
        stats.filled += more.filled;
        stats.ahead += more.ahead;
        stats.chunks_left += more.chunks_left;
        stats.removes += more.removes;
        stats.again += more.again;
        stats.poisoned += more.poisoned;
        stats.reclaimed += more.reclaimed;
        stats.waiting += more.waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_has_a_limit_however_many_templates_there_are() {
        let monitor = Monitor::new(Arc::new(Cache::new(0)), None);
        for number in 0..3 * MOST_TEMPLATES as u64 {
            monitor.waits_for_template(number, Some(&format!("/images/{number}")));
        }
        let templates = monitor.sums().templates;
        assert_eq!(templates.len(), MOST_TEMPLATES + 1);
        assert_eq!(templates[OTHERS].without_template, 2 * MOST_TEMPLATES as u64);
        (0..3 * MOST_TEMPLATES as u64).for_each(|number| monitor.waits_for_template(number, None));
        assert!(monitor.sums().templates.values().all(|totals| totals.without_template == 0));
    }
}
