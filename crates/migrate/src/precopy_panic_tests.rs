//! A source that panics during a migration.

use super::*;

/// The source panics at one of its calls, and again when it is asked to give back.
#[test]
fn a_guest_whose_source_panics_runs_as_before() {
    let watches: [fn(Progress) -> ControlFlow<()>; 3] = [
        |at| if at.round == 1 && at.sent > 100 { resume_unwind(Box::new(())) } else { Continue(()) },
        |at| if at.last && at.sent == 0 { resume_unwind(Box::new(())) } else { Continue(()) },
        |at| if at.last && at.sent > 0 { resume_unwind(Box::new(())) } else { Continue(()) },
    ];
    for (watch, calls) in watches.into_iter().zip([
        &[] as &[_],
        &["slower", "slower", "halt", "resume", "full speed"],
        &["slower", "slower", "halt", "resume", "full speed"],
    ]) {
        for flaw in [None, Some(Flaw::PanicsAgain)] {
            let mut guest = Guest { flaw, watch, ..Guest::new(16) };
            let received = with_receiver(|open| {
                let settings = PreCopy::new().auto_converge().downtime(Duration::ZERO).max_rounds(4);
                let send = || settings.send(&mut guest, || connect(open)).map(drop);
                assert!(catch_unwind(AssertUnwindSafe(send)).is_err());
            });
            assert!(received.is_err());
            assert_eq!(guest.calls, calls);
            assert!(guest.runs && guest.slowed_down == 0 && guest.session.identity().is_none());
            assert!(flaw.is_some() || guest.taken.is_empty() && !guest.log.is_empty());
        }
    }
}

/// The receiver may run it.
#[test]
fn a_guest_that_has_left_stays_halted_after_a_panic() {
    let mut guest = Guest { flaw: Some(Flaw::PanicsInCommit), ..Guest::new(4) };
    let memory = with_receiver(|open| {
        let settings = PreCopy::new().max_rounds(1);
        let send = || settings.send(&mut guest, || connect(open)).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(send)).is_err());
    });
    assert_eq!(memory.unwrap(), guest.memory);
    assert_eq!(guest.calls, ["halt"]);
}
