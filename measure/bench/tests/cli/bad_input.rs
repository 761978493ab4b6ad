//! Bad input to benches: exit status 2, nothing on standard output, and a line that names the flag.

use crate::common::refused;

/// Arguments, and a part of the error.
const REFUSED: &[(&str, &str)] = &[
    ("demand-paging -b 5000", "slat: --bytes: 5000 is not a multiple of 4K from 4K to 4T\n"),
    ("demand-paging --single", "slat: --single: there are no handlers without -u missing or -u minor\n"),
    (
        "demand-paging -u minor --prefilled",
        "slat: --prefilled: the handlers of -u would have nothing to do\n",
    ),
    ("dirty-log-perf -v 2 -b 3M", "slat: --bytes: 3145728 is not a multiple of 2M from 2M to 512G\n"),
    ("dirty-log-perf -v 2 --huge 2T", "slat: --huge: 2199023255552 is not a multiple of 2M from 2M to 1T\n"),
    ("dirty-log-perf -v 2 --sparse 2G", "slat: --dense: 4294967296 is not a multiple of 2M from 2M to 2G\n"),
    ("dirty-log-perf -v 2 -x 257", "slat: --slots: 536870912 bytes are less than 257 parts of 2M\n"),
    ("dirty-log-perf -v 2 --huge 2M", "slat: --huge: 2097152 bytes are less than 2 parts of 2M\n"),
    ("fault-floor -b 5000", "slat: --bytes: 5000 is not a multiple of 4K from 4K to 64T\n"),
    ("fault-floor -b 65T -v 1,2", "slat: --bytes: "),
    ("host-faults -b 4T", "slat: --bytes: "),
    ("host-faults --changed 4K", "slat: --changed: 4096 is not a multiple of 2M from 2M to 4T\n"),
    ("ksm-perf -b 1M", "slat: --bytes: 1M is not a multiple of 2M up to 1G\n"),
    ("ksm-perf -b 65537", "slat: --bytes: 65537 is not a multiple of 2M up to 1G\n"),
    ("ksm-perf -b 2G", "slat: --bytes: 2G is not a multiple of 2M up to 1G\n"),
    ("ksm-perf --mergeable 4K", "slat: --mergeable: 4K is not a multiple of 4K from 8K to 8M\n"),
    ("ksm-perf --mergeable 9M", "slat: --mergeable: 9M is not a multiple of 4K from 8K to 8M\n"),
    ("ksm-perf --mergeable 12345", "slat: --mergeable: 12345 is not a multiple of 4K from 8K to 8M\n"),
    // The test has three kinds of contents.
    ("ksm-perf --vms 2", "--vms"),
    ("memslot-perf -s 1", "slat: --slots: 1 is not between 2 and 1000000\n"),
    ("memslot-perf -s 10,1000001", "slat: --slots: 1000001 is not between 2 and 1000000\n"),
    ("memslot-perf --seconds=-1", "slat: --seconds: -1 is not between 0 and 3600\n"),
    ("memslot-perf --seconds=nan", "slat: --seconds: NaN is not between 0 and 3600\n"),
    ("memslot-perf --seconds 1e9", "slat: --seconds: 1000000000 is not between 0 and 3600\n"),
    ("numa-balancing --scan 0", "--scan"),
    ("numa-balancing --vcpus 1", "--vcpus"),
    ("numa-balancing --nodes 1", "--nodes"),
    ("numa-balancing --passes 1", "--passes"),
    ("numa-balancing --every 10", "--every"),
    ("reclaim --limit 4", "4"),
    ("reclaim --limit 101", "101"),
    ("reclaim --limit half", "half"),
    ("reclaim -a 0", "0"),
    ("reclaim --runs 0", "0"),
    ("migrate -b 5000", "slat: --bytes: 5000 is not a multiple of 4K from 64K to 64G\n"),
    ("migrate -b 1M --working-set 2M", "slat: --working-set: 2M is not from 4K to --bytes, 1M\n"),
    ("migrate --bandwidth 1000", "--bandwidth: from 1M"),
    ("migrate --ring 5000", "power of two"),
    ("migrate --ring 2M", "1048576 are the most"),
    ("migrate --ring 4K --track writes", "cannot be used with"),
    ("migrate --fail-at-round 1 --fail-each-round", "cannot be used with"),
    ("migrate --fail-at-round 0", "--fail-at-round"),
    ("migrate --downtime 0", "--downtime"),
    ("migrate -v 0", "--vcpus"),
    ("zap --sizes 1G,4K", "slat: --sizes: 4096 is not a multiple of 2M from 2M to 512G\n"),
    ("zap --sizes 1T", "slat: --sizes: 1099511627776 is not a multiple of 2M from 2M to 512G\n"),
    ("invalidate -b 3M", "slat: --bytes: 3145728 is not a multiple of 2M from 2M to 64T\n"),
    ("invalidate --range 12K", "slat: --range: 12288 is no power of two from 4K to 2M\n"),
];

#[test]
fn bad_input_is_refused_with_exit_status_2() {
    for (line, says) in REFUSED {
        refused(&[&["bench"], &line.split(' ').collect::<Vec<_>>()[..]].concat(), &[says]);
    }
}
