//! Named counters: summed over worlds, and printed in one line.

/// Makes a `Tally` of these fields, each printed by its name.
macro_rules! tally {
    ($($(#[$attribute:meta])* $field:ident $name:literal)*) => {
        /// The counters.
        #[derive(Clone, Copy, Default)]
        pub struct Tally {
            $($(#[$attribute])* pub $field: u64,)*
        }

        impl Tally {
            /// Returns every counter that must not be zero over all settings, with its name: all but the last two.
            pub fn must_have_happened(&self) -> Vec<(u64, &'static str)> {
                let mut all = vec![$((self.$field, $name)),*];
                all.truncate(all.len() - 2);
                all
            }
        }

        impl std::ops::AddAssign for Tally {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl std::fmt::Display for Tally {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let parts = [$(format!(concat!("{} ", $name), self.$field)),*];
                f.write_str(&parts.join(", "))
            }
        }
    };
}

pub(crate) use tally;
