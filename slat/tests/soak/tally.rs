//! How much has happened: added up over worlds, and told in one line.

use std::fmt;
use std::ops::AddAssign;

macro_rules! tally {
    ($($field:ident $name:literal)*) => {
        #[derive(Clone, Copy, Default)]
        pub struct Tally {
            $(pub $field: u64,)*
        }

        impl Tally {
            /// Every number that must not be zero, with its name: all but the last two.
            pub fn sure(&self) -> Vec<(u64, &'static str)> {
                let mut all = vec![$((self.$field, $name)),*];
                all.truncate(all.len() - 2);
                all
            }
        }

        impl AddAssign for Tally {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let parts = [$(format!(concat!("{} ", $name), self.$field)),*];
                f.write_str(&parts.join(", "))
            }
        }
    };
}

tally! {
    uses "uses"
    faults "faults"
    retries "retries"
    prefaults "prefaults"
    host_changes "host changes"
    zaps "zaps of all"
    splits "splits"
    recovered "recovered"
    reclaimed "reclaimed"
    slot_changes "slot changes"
    log_checks "checks of logs"
    no_memory "out of budget"
    stale "stale uses"
}
