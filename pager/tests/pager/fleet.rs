//! Hosts that share a store and nothing else. A seed draws the order of their calls. Calls may take effect late, twice,
//! or although they seemed to fail, and hosts may die. The test runs the unmodified library on a store in memory that
//! schedules the calls.

use slat_pager::{Entry, Library, PATIENCE, Store, StoreError, Version};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

const PAGE: usize = 4096;
const HOSTS: usize = 6;

/// The store, and its schedule.
struct World {
    state: Mutex<State>,
    /// For each host, a signal that its turn has come.
    turns: [Condvar; HOSTS],
}

struct State {
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    /// Number of calls: the clock, and the versions of objects.
    calls: u64,
    /// Hosts that want to make a call, hosts that have ended, and the host that may make it.
    hosts: Vec<Host>,
    turn: Option<usize>,
    /// Calls that take effect once more, later.
    late: Vec<(String, Option<Vec<u8>>)>,
    random: fastrand::Rng,
    mishaps: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Host {
    Runs,
    Waits,
    HasEnded,
}

/// A host's view of the store.
#[derive(Clone)]
struct View {
    world: Arc<World>,
    host: usize,
}

fn fails(key: &str) -> StoreError {
    StoreError::Io { key: key.into(), error: io::Error::new(io::ErrorKind::TimedOut, "on purpose") }
}

impl World {
    fn new(seed: u64, hosts: usize) -> Arc<Self> {
        let state = State {
            objects: BTreeMap::new(),
            calls: 0,
            hosts: vec![Host::Runs; hosts],
            turn: None,
            late: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            mishaps: false,
        };
        Arc::new(Self { state: Mutex::new(state), turns: Default::default() })
    }
}

impl State {
    /// When each host waits or has ended, resumes one of those that wait. Favours hosts differently for a while, so
    /// that some fall far behind.
    fn choose(&mut self, turns: &[Condvar; HOSTS]) {
        if self.turn.is_none() && !self.hosts.contains(&Host::Runs) {
            let waits: Vec<_> =
                (0..self.hosts.len()).filter(|host| self.hosts[*host] == Host::Waits).collect();
            if waits.is_empty() {
                return;
            }
            let favoured = (self.calls / 12) as usize % waits.len();
            let any = self.random.usize(..waits.len());
            let turn = waits[if self.random.u8(..4) > 0 { favoured } else { any }];
            self.turn = Some(turn);
            // Wakes no other host, which would only sleep again.
            turns[turn].notify_all();
        }
    }

    fn late(&mut self, all: bool) {
        while !self.late.is_empty() && (all || self.random.u8(..8) == 0) {
            let (key, bytes) = self.late.swap_remove(self.random.usize(..self.late.len()));
            match bytes {
                Some(bytes) => _ = self.objects.insert(key, (bytes, self.calls)),
                None => _ = self.objects.remove(&key),
            }
        }
    }
}

impl View {
    /// Makes a call in turn. `Err`: it seems to have failed, although it had its effect.
    fn call<T>(&self, key: &str, call: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let mut state = self.world.state.lock().unwrap();
        state.hosts[self.host] = Host::Waits;
        state.choose(&self.world.turns);
        while state.turn != Some(self.host) {
            state = self.world.turns[self.host].wait(state).unwrap();
        }
        (state.turn, state.hosts[self.host]) = (None, Host::Runs);
        state.calls += 1;
        let result = call(&mut state);
        if state.mishaps {
            state.late(false);
            if state.random.u8(..20) == 0 {
                return Err(fails(key));
            }
        }
        Ok(result)
    }

    fn end(&self) {
        let mut state = self.world.state.lock().unwrap();
        state.hosts[self.host] = Host::HasEnded;
        state.choose(&self.world.turns);
    }
}

fn time(call: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(call)
}

impl Store for View {
    fn read(&self, key: &str, _: usize) -> Result<(Vec<u8>, Version), StoreError> {
        let found = self.call(key, |state| state.objects.get(key).cloned())?;
        let (bytes, version) = found.ok_or_else(|| StoreError::Missing(key.into()))?;
        Ok((bytes, Version(version.to_string())))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.call(key, |state| {
            let calls = state.calls;
            state.objects.insert(key.into(), (bytes.into(), calls));
            // A write may take effect twice, except that of the lease, which would be older then.
            if state.mishaps && !key.starts_with("leases/") && state.random.u8(..8) == 0 {
                state.late.push((key.into(), Some(bytes.into())));
            }
        })
    }

    fn put_if(&self, key: &str, bytes: &[u8], before: Option<&Version>) -> Result<bool, StoreError> {
        self.call(key, |state| {
            let now = state.objects.get(key).map(|(_, version)| Version(version.to_string()));
            let calls = state.calls;
            let same = now.as_ref() == before;
            if same {
                state.objects.insert(key.into(), (bytes.into(), calls));
            }
            same
        })
    }

    fn entries(&self, kind: &str) -> Result<Vec<Entry>, StoreError> {
        self.call(kind, |state| {
            let all = state.objects.iter();
            let names =
                all.filter_map(|(key, (_, call))| Some((key.strip_prefix(kind)?.strip_prefix('/')?, call)));
            names.map(|(name, call)| Entry { name: name.into(), modified: time(*call) }).collect()
        })
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.call(key, |state| {
            state.objects.remove(key);
            if state.mishaps && !key.starts_with("leases/") && state.random.u8(..2) == 0 {
                state.late.push((key.into(), None));
            }
        })
    }
}

fn snapshot(library: &Library, name: &str, pages: &[u8]) -> Result<(), StoreError> {
    let image: Vec<u8> = pages.iter().flat_map(|byte| [*byte; PAGE]).collect();
    library.snapshot(name, &*image, image.len() as u64, PAGE).map(|_| ())
}

/// Returns what is wrong after one order of calls.
fn explore(seed: u64) -> Vec<String> {
    let world = World::new(seed, 1);
    let view = &|host| View { world: world.clone(), host };
    let library = |host: usize| Library::new(view(host)).writers(1).numbered(host as u128);
    for (name, pages) in [("a", [1, 2]), ("b", [2, 3])] {
        snapshot(&library(0), name, &pages).unwrap();
    }
    let mut draw = fastrand::Rng::with_seed(!seed);
    // If live hosts are taken for dead, objects that they serve may be deleted.
    // In every fourth world collections are many, so leases end.
    let (collections, reads, short) = if seed.is_multiple_of(4) { (3, 20, 10) } else { (1, 1, 30) };
    let patience = if draw.bool() { Duration::from_secs(short) } else { PATIENCE };
    {
        let mut state = world.state.lock().unwrap();
        (state.hosts, state.mishaps) = (vec![Host::Runs; HOSTS], draw.bool());
    }
    let wrong = Mutex::new(Vec::new());
    let run = |host: usize, work: &dyn Fn(&Library)| {
        work(&library(host));
        view(host).end();
    };
    let (run, wrong_now) = (&run, &wrong);
    std::thread::scope(|scope| {
        scope.spawn(move || run(0, &|library| _ = snapshot(library, "c", &[1, 2, 4])));
        scope.spawn(move || run(1, &|library| _ = snapshot(library, "a", &[3, 5])));
        scope.spawn(move || {
            run(2, &|library| {
                _ = library.remove("a");
                _ = snapshot(library, "d", &[1, 2]);
            });
        });
        // A lease ends when two collections, `patience` apart, have seen it unchanged.
        scope.spawn(move || run(3, &|library| (0..collections).for_each(|_| _ = library.gc(patience))));
        scope.spawn(move || {
            run(4, &|library| {
                _ = library.gc(patience);
                _ = library.remove("b");
                _ = library.gc(patience);
            });
        });
        scope.spawn(move || {
            run(5, &|library| {
                let Ok(template) = library.open("b") else { return };
                // For as long as collections run.
                let chunks = (0..2 * reads).map(|read| template.chunks()[read % 2]);
                for hash in chunks.flatten().filter(|_| patience == PATIENCE) {
                    if matches!(view(5).get(&hash.key(), 1 << 20), Err(StoreError::Missing(_))) {
                        wrong_now.lock().unwrap().push(format!("{hash} is served, and gone"));
                    }
                }
            });
        });
    });
    let mut wrong = wrong.into_inner().unwrap();
    {
        let mut state = world.state.lock().unwrap();
        state.late(true);
        (state.hosts, state.mishaps) = (vec![Host::Runs], false);
    }
    let library = library(0);
    for _ in 0..3 {
        world.state.lock().unwrap().calls += 1_000_000;
        for name in library.list().unwrap() {
            match library.verify(&name) {
                Ok(verified) => wrong.extend(verified.damaged),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        // When no host is left, a collection leaves whole templates, and nothing else.
        if let Err(error) = library.gc(PATIENCE) {
            wrong.push(error.to_string());
        }
    }
    let mut needed: Vec<_> = library
        .list()
        .unwrap()
        .iter()
        .filter_map(|name| library.open(name).ok())
        .flat_map(|open| open.chunks().to_vec())
        .collect();
    needed.sort();
    needed.dedup();
    let view = view(0);
    let counts = ["chunks", "leases"].map(|kind| view.list(kind).unwrap().len());
    if wrong.is_empty() && (counts[0] > needed.len() + 3 || counts[1] > 0) {
        wrong.push(format!("{counts:?} chunks and leases are left, {} are needed", needed.len()));
    }
    wrong
}

#[test]
fn hosts_that_share_a_store_lose_no_chunk_in_any_order() {
    let seeds = std::env::var("SLAT_TRIES").map_or(200, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let wrong = explore(seed);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
}
