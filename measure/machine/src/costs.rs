//! The cost of each operation of a simulated CPU: one number each, in nanoseconds unless it says otherwise.
//!
//! [`Costs::SERVER`] is assumed: a machine of the kind that the TDP MMU series speaks of, eight sockets of 52 CPUs. Its figures are
//! round ones from what vendors and others publish of such processors, and none has been measured by us; two of them decide
//! most of what is simulated, [`near`](Costs::near) with [`far`](Costs::far), and [`kick`](Costs::kick) with what belongs to
//! it: sweep those before believing a ratio.

/// One of the [`Costs`], by name: for files, tables and sweeps.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As the field is called.
    pub name: &'static str,
    /// Of what.
    pub unit: &'static str,
    /// The operation that costs this, in a line.
    pub about: &'static str,
    /// Its value.
    pub get: fn(&Costs) -> f64,
    /// Makes it another one. A count is rounded, and at least 1.
    pub set: fn(&mut Costs, f64),
}

/// The fields once: their types, their values on the server, and the table of them.
macro_rules! costs {
    ($($name:ident = $server:literal $unit:literal: $about:literal;)*) => {
        /// The cost of each operation. See the module's header.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Costs {
            $(#[doc = concat!($about, ", in ", $unit, ".")] pub $name: f64,)*
            /// CPUs of a socket: lines among them are near.
            pub cpus_per_socket: u32,
        }

        impl Costs {
            /// Eight sockets of 52 CPUs: assumed.
            pub const SERVER: Self = Self { $($name: $server,)* cpus_per_socket: 52 };

            /// Every field, in the order in which they are shown.
            pub const FIELDS: &'static [Field] = &[
                $(Field {
                    name: stringify!($name),
                    unit: $unit,
                    about: $about,
                    get: |costs| costs.$name,
                    set: |costs, value| costs.$name = value,
                },)*
                Field {
                    name: "cpus_per_socket",
                    unit: "CPUs",
                    about: "CPUs of a socket: lines among them are near",
                    get: |costs| costs.cpus_per_socket.into(),
                    set: |costs, value| costs.cpus_per_socket = value.round().max(1.0) as u32,
                },
            ];
        }
    };
}

costs! {
    load = 0.5 "ns": "a load from a line that this CPU has";
    store = 0.5 "ns": "a store to one";
    rmw = 6.0 "ns": "a read-modify-write of one, beyond the plain instructions that run meanwhile";
    fence = 8.0 "ns": "a full fence";
    step = 0.5 "ns": "the plain instructions between two shared operations, on average";
    full_path = 10.0 "ns": "the plain instructions of a fault's full pipeline, or of an invalidation, beyond those between its shared operations";
    near = 60.0 "ns": "a line comes from another CPU of this socket";
    far = 140.0 "ns": "a line comes from another socket";
    handoff = 30.0 "ns": "the next owner of a lock notices that it is free, beyond the journeys of its line";
    park_after = 0.0 "ns": "a waiter for a lock spins for so long, then sleeps; 0: a queued spin lock, no sleep";
    kick = 400.0 "ns": "sending an interrupt to another CPU";
    kick_arrives = 800.0 "ns": "until that CPU notices";
    kick_taken = 1500.0 "ns": "its guest leaves, answers, and is entered again: half of it before the answer";
    wake = 800.0 "ns": "waking a sleeping thread: the call of the one who wakes";
    wake_arrives = 3000.0 "ns": "until the sleeper runs";
    zero = 150.0 "ns": "zeroing a page of 4 KiB, by one CPU alone";
    read = 250.0 "ns": "reading a page of 4 KiB, by one CPU alone";
    word = 0.3 "ns": "a look at one of many words in a row, beyond the loads of their lines";
    copy = 4.0 "ns": "copying a line of memory that no other CPU uses, with its share of allocating and freeing a node";
    bandwidth = 100.0 "bytes/ns": "what the memory of one socket takes, shared by its CPUs";
    barrier = 3000.0 "ns": "a membarrier over the whole process";
    clock = 20.0 "ns": "reading the clock";
    pause = 20.0 "ns": "a turn of a loop that waits, beyond what it looks at";
}

impl Costs {
    /// The same with one field, of [`FIELDS`](Self::FIELDS), so many times as large.
    ///
    /// ```
    /// use slat_machine::Costs;
    /// let dear = Costs::SERVER.scaled("near", 2.0)?;
    /// assert_eq!((dear.near, dear.far), (2.0 * Costs::SERVER.near, Costs::SERVER.far));
    /// assert_eq!(Costs::SERVER.scaled("neat", 2.0).unwrap_err(), "there is no cost \"neat\"");
    /// # Ok::<(), String>(())
    /// ```
    pub fn scaled(&self, name: &str, factor: f64) -> Result<Self, String> {
        let Some(field) = Self::FIELDS.iter().find(|field| field.name == name) else {
            return Err(format!("there is no cost {name:?}"));
        };
        let mut scaled = self.clone();
        (field.set)(&mut scaled, (field.get)(self) * factor);
        Ok(scaled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_gotten_and_set_by_its_name() {
        for (nth, field) in Costs::FIELDS.iter().enumerate() {
            let mut costs = Costs::SERVER;
            (field.set)(&mut costs, 77.0);
            let value = |of: &Costs, field: &Field| (field.get)(of).to_bits();
            let changed =
                Costs::FIELDS.iter().filter(|other| value(&costs, other) != value(&Costs::SERVER, other));
            let changed: Vec<_> = changed.map(|field| field.name).collect();
            assert_eq!(changed, [field.name], "number {nth}");
            assert_eq!(costs.scaled(field.name, 2.0).map(|costs| (field.get)(&costs)), Ok(154.0));
        }
    }

    #[test]
    fn no_field_is_left_out() {
        let shown = format!("{:?}", Costs::SERVER);
        assert_eq!(shown.matches(": ").count(), Costs::FIELDS.len());
    }
}
