//! The list of mistakes, printed for `cargo xtask verify`.

use super::*;

#[test]
fn are_listed() {
    for (index, bug) in Bug::ALL.iter().enumerate() {
        std::println!("BUG {} {:?} {}", bug.name(), bug.tool(), bug.what());
        let same = Bug::ALL[..index].iter().any(|other| other.name() == bug.name());
        assert!(!same, "{}: two mistakes of that name", bug.name());
    }
}

#[test]
fn one_is_made_where_it_was_asked_for() {
    let bug = Bug::ALL[0];
    with(bug, || assert!(is(bug) && !is(Bug::ALL[1])));
    assert!(!is(bug));
}
