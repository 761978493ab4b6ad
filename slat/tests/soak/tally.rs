//! Counters: summed over worlds, and printed in one line.

use crate::counts::tally;

tally! {
    uses "uses"
    uses_of_l2 "stays in L2"
    faults "faults"
    retries "retries"
    prefaults "prefaults"
    host_changes "host changes"
    wide_changes "wide ones among several at once"
    zaps "zaps of all"
    splits "splits"
    recovered "recovered"
    reclaimed "reclaimed"
    slot_changes "slot changes"
    log_checks "checks of logs"
    held "uses of held frames"
    no_memory "out of budget"
    stale "stale uses"
}
