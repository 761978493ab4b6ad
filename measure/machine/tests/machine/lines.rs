//! Transfer times of lines, to the nanosecond, with a price list of round numbers.

use slat_machine::Ordering::Relaxed;
use slat_machine::{AtomicU64, Costs, Job, compute, copied, filled, forget, now, read_at_once, run};
use std::sync::Mutex;

/// Two sockets of two CPUs. An operation costs nothing except transfers.
const COSTS: Costs = Costs {
    load: 0.0,
    store: 0.0,
    rmw: 0.0,
    step: 0.0,
    near: 100.0,
    far: 1000.0,
    cpus_per_socket: 2,
    ..Costs::SERVER
};

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

/// The time at which each of four CPUs has finished its operation.
fn done(acts: [(u64, &(dyn Fn() + Sync)); 4]) -> [u64; 4] {
    let done = Mutex::new([0; 4]);
    let job = |(cpu, (at, act)): (usize, (u64, &'static (dyn Fn() + Sync)))| {
        let done = &done;
        Job::new("CPU", move || {
            compute(at);
            act();
            done.lock().unwrap()[cpu] = now();
        })
    };
    // SAFETY: the run ends before the operations are dropped.
    let acts: [(u64, &'static (dyn Fn() + Sync)); 4] = unsafe { std::mem::transmute(acts) };
    run(&COSTS, acts.into_iter().enumerate().map(job).collect());
    done.into_inner().unwrap()
}

#[test]
fn a_line_travels_near_and_far() {
    let line = Line::default();
    let write = || _ = line.0.fetch_add(1, Relaxed);
    // No CPU has the line; then a CPU of this socket has it; then one of the other socket; then this one again.
    assert_eq!(
        done([(0, &write), (10_000, &write), (20_000, &write), (30_000, &write)]),
        [0, 10_100, 21_000, 30_100]
    );
}

#[test]
fn writers_come_one_after_the_other_and_readers_nearly_together() {
    let (line, read) = (Line::default(), Line::default());
    let write = || _ = line.0.fetch_add(1, Relaxed);
    let nothing = || ();
    // All CPUs arrive during the first transfer; they are served in the order of their clocks.
    assert_eq!(done([(0, &write), (5000, &write), (5001, &write), (5002, &nothing)]), [0, 5100, 6100, 5002]);
    let load = || _ = read.0.load(Relaxed);
    // The second reader waits for a quarter of the first one's transfer.
    assert_eq!(done([(0, &load), (5000, &load), (5000, &load), (9000, &load)]), [0, 5100, 6025, 9100]);
}

#[test]
fn a_sharer_reads_its_line_at_no_cost_until_a_write() {
    let line = Line::default();
    let load = || _ = line.0.load(Relaxed);
    let loads = || {
        load();
        compute(10_000);
        load();
    };
    let late = || {
        load();
        compute(2000);
        line.0.store(1, Relaxed);
        compute(20_000);
        load();
    };
    // The writer has read the line. It takes the line from the other CPU, which fetches it again and shares it.
    assert_eq!(done([(0, &loads), (0, &|| ()), (100, &late), (0, &|| ())]), [11_000, 0, 24_100, 0]);
}

#[test]
fn lines_of_plain_data_travel_together_and_freed_memory_belongs_to_no_cpu() {
    let nodes: [[Line; 2]; 2] = Default::default();
    let [old, new] = &nodes;
    let fill = || filled(old);
    let read = || read_at_once(old.iter().map(|line| core::ptr::from_ref(line).cast()));
    let nothing = || ();
    // Both lines take the time of one. A copy costs as much again, and two lines of copying.
    assert_eq!(done([(0, &fill), (5000, &read), (0, &nothing), (0, &nothing)]), [0, 5100, 0, 0]);
    let copy = || copied(old, new);
    assert_eq!(done([(0, &fill), (5000, &copy), (0, &nothing), (0, &nothing)]), [0, 5108, 0, 0]);
    let fresh = || {
        forget(old);
        read();
    };
    assert_eq!(done([(0, &fill), (5000, &fresh), (0, &nothing), (0, &nothing)]), [0, 5000, 0, 0]);
}

#[test]
fn waiting_excludes_the_transfer_itself() {
    let line = Line::default();
    let add = || {
        for _ in 0..100 {
            compute(10);
            line.0.fetch_add(1, Relaxed);
        }
    };
    let seldom = || {
        for _ in 0..100 {
            compute(1000);
            line.0.fetch_add(1, Relaxed);
        }
    };
    let late = || {
        compute(500);
        seldom();
    };
    let told = run(&COSTS, vec![Job::new("CPU", seldom), Job::new("CPU", late)]);
    assert!(told.jobs.iter().all(|job| job.waiting_ns == 0), "{told:?}");
    // Before the first transfer, the first user may be a little ahead.
    assert!((195..200).contains(&told.lines[0].transfers), "{told:?}");
    let told = run(&COSTS, (0..4).map(|_| Job::new("CPU", add)).collect());
    assert!(told.jobs[1..].iter().all(|job| job.waiting_ns > job.ns / 3), "{told:?}");
    assert_eq!(told.lines.len(), 1, "one place");
    assert!(told.lines[0].file.ends_with("lines.rs") && told.lines[0].transfers > 200, "{:?}", told.lines);
}
