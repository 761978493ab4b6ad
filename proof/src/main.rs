//! `slat-proof`.
use slat_proof::*;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn main() {
    let only = std::env::args().nth(1);
    let sizes: Vec<usize> = std::env::args().nth(2).map(|s| s.split(',').map(|n| n.parse().unwrap()).collect()).unwrap_or_default();
    for system in systems() {
        let questions: Vec<_> = questions(&system).into_iter().filter(|q| only.as_ref().is_none_or(|o| q.name(&system).contains(o.as_str()))).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|s| for _ in 0..2 { s.spawn(|| {
            while let Some(q) = questions.get(next.fetch_add(1, Relaxed)) {
                let t = std::time::Instant::now();
                let v = q.ask(&system, Solver::Z3, 1, 5);
                let t = t.elapsed();
                if !matches!(v, Verdict::Good) || t.as_millis() > 1000 { println!("{} {v:?} {t:?}", q.name(&system)); 
                if let (Question::Step(a, c), false) = (*q, sizes.is_empty()) {
                    match counterexample(&system, &system.actions[a], Some(c), &sizes, 60) {
                        Ok(Some(x)) => println!("{}", x.dump(&system, &system.actions[a], c)), other => println!("{other:?}") }
                }
                }
            }
        }); });
        println!("{} questions", questions.len());
    }
}
