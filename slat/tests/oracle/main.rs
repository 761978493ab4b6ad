//! Misuse that the oracle reports, each at the call that is wrong; and, as the control of each, the correct sequence, of
//! which it reports nothing.
//!
//! | file | breaks the contract |
//! |---|---|
//! | [`correct`] | no party: sequences that look like misuse |
//! | [`host_table`] | a host that changes its table |
//! | [`frames`] | a host that gives, lends and frees frames |
//! | [`vcpus`] | a VMM that runs vCPUs, and stores to logged memory |

mod correct;
mod frames;
mod host_table;
mod machine;
#[cfg(feature = "nested")]
mod nested;
mod vcpus;

use machine::{Fixture, reports, reports_after};
use slat::oracle::Rule;
use std::time::Duration;

/// A misuse: its name, what is reported, and a sequence of which `true` is the wrong variant.
type Case = (&'static str, &'static [(Rule, &'static str)], fn(&mut Fixture<'_>, bool));

fn check(cases: &[Case]) {
    for (name, expected, sequence) in cases {
        assert_eq!(reports(|fixture| sequence(fixture, true)), *expected, "misuse: {name}");
        assert_eq!(reports(|fixture| sequence(fixture, false)), [], "control: {name}");
    }
}

#[test]
fn each_change_of_a_hosts_table_without_its_invalidation_is_reported() {
    check(host_table::CASES);
}

#[test]
fn each_frame_that_is_given_lent_or_freed_wrongly_is_reported() {
    check(frames::CASES);
}

#[test]
fn each_misuse_of_a_vcpu_is_reported() {
    check(vcpus::CASES);
}

#[test]
fn correct_sequences_are_not_reported() {
    correct::check();
}

/// Only this case needs a clock.
#[test]
fn a_kick_that_is_answered_late_is_reported() {
    let late = (Rule::KickLate, "InGuest::drop");
    assert_eq!(reports_after(Duration::ZERO, vcpus::is_kicked), [late], "misuse");
    assert_eq!(reports(vcpus::is_kicked), [], "control");
}

/// Prints the medians: `cargo test --release -p slat --features oracle --test oracle cost -- --nocapture`.
#[test]
fn the_cost_of_a_fault_is_told() {
    let [off, on] = [false, true].map(|is_checked| {
        let mut times: Vec<_> = (0..9).map(|_| machine::nanoseconds_of_a_fault(is_checked)).collect();
        times.sort_unstable_by(f64::total_cmp);
        times[4]
    });
    println!("a fault: {off:.0} ns with the oracle off, {on:.0} ns on, {:.1} times as much", on / off);
}

/// Every rule has a case.
#[test]
fn each_rule_is_broken_by_a_case() {
    let cases = [host_table::CASES, frames::CASES, vcpus::CASES].concat();
    for rule in Rule::ALL {
        let is_shown = cases.iter().any(|(_, reports, _)| reports.iter().any(|(shown, _)| shown == rule));
        assert!(is_shown || [Rule::KickLate, Rule::LeafLeft].contains(rule), "{rule:?}");
    }
    assert!(cases.len() >= 25, "{}", cases.len());
}

/// The panic about an invalidation that was leaked comes after the table pages were given back.
#[test]
fn a_vm_with_an_open_invalidation_gives_its_table_pages_back() {
    for is_leaked in [true, false] {
        let mut pages = None;
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            machine::with_default_checks(|fixture| {
                fixture.ask(5, slat::Access::Read);
                let vm = fixture.vm;
                let open = vm.invalidate(machine::hvas(5), slat::Why::Unmap).apply(fixture.idle).settle();
                if is_leaked {
                    std::mem::forget(open);
                }
                pages = Some((vm.host().given_back.clone(), vm.host().lent()));
            });
        }));
        assert_eq!(dropped.is_err(), is_leaked);
        let (given_back, lent) = pages.expect("the case has run");
        assert_eq!(given_back.load(std::sync::atomic::Ordering::Relaxed), lent);
    }
}

/// A report says the call, the rule, the values and the cure; by default it is a panic.
#[test]
fn a_report_is_a_panic_that_says_what_to_do() {
    let broken = std::panic::catch_unwind(|| {
        machine::with_default_checks(|fixture| {
            fixture.ask(5, slat::Access::Read);
            fixture.set(5, machine::page(0x99));
            fixture.ask(5, slat::Access::Read);
        });
    });
    let text = *broken.unwrap_err().downcast::<String>().unwrap();
    for part in ["Host::lookup: ", "moved without a change", "0x40005000", "0x99", "Vm::change"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
