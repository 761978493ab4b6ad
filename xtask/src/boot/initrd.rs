//! The guest's whole file system: busybox and a script, as a cpio archive (the "newc" kind, which kernels unpack).

/// What runs in the guest: it says that it is there, and how many processors it has, writes 1.3 MB and reads it back, and is done. Its lines are its own:
/// the kernel is told to be quiet, and has the last word only when they are out. Where there is no ACPI nothing can be
/// powered off, and a reset ends the machine.
const SCRIPT: &str = "#!/bin/busybox sh
PATH=/bin
busybox mkdir -p /proc
busybox mount -t proc proc /proc
busybox dmesg -n 1
echo \"slat: shell of Linux $(busybox uname -r)\"
echo \"slat: cpus $(busybox grep -c ^processor /proc/cpuinfo)\"
busybox seq 1 200000 > /numbers
echo \"slat: sum $(busybox md5sum < /numbers)\"
busybox sleep 0.2
busybox grep -q acpi=off /proc/cmdline && busybox reboot -f
busybox poweroff -f
";

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// The archive.
pub fn archive(busybox: &[u8]) -> Vec<u8> {
    let mut archive = Vec::with_capacity(busybox.len() + 4096);
    let entries: [(&str, u32, &[u8]); 3] =
        [("bin", FOLDER, &[]), ("bin/busybox", PROGRAM, busybox), ("init", PROGRAM, SCRIPT.as_bytes())];
    for (number, (name, mode, data)) in (1..).zip(entries) {
        append(&mut archive, number, name, mode, data);
    }
    append(&mut archive, 0, "TRAILER!!!", 0, &[]);
    archive
}

/// A header of a magic number and 13 numbers in hexadecimal, the name, the data; name and data end at multiples of four.
fn append(archive: &mut Vec<u8>, number: u32, name: &str, mode: u32, data: &[u8]) {
    let name_bytes = name.len() as u32 + 1;
    let (owner, group, links, time) = (0, 0, 1, 0);
    let (device, special) = ([0, 0], [0, 0]);
    let fields = [
        number,
        mode,
        owner,
        group,
        links,
        time,
        data.len() as u32,
        device[0],
        device[1],
        special[0],
        special[1],
        name_bytes,
        0,
    ];
    archive.extend(b"070701");
    archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
    archive.extend(name.bytes().chain([0]));
    pad(archive);
    archive.extend(data);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_one_behind_the_other() {
        let archive = archive(b"not really busybox");
        let hex = |at: usize| {
            usize::from_str_radix(std::str::from_utf8(&archive[at..at + 8]).unwrap(), 16).unwrap()
        };
        let (mut at, mut found) = (0, Vec::new());
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701");
            let (size, name_bytes) = (hex(at + 6 + 6 * 8), hex(at + 6 + 11 * 8));
            let name = &archive[at + 110..at + 110 + name_bytes - 1];
            let data = (at + 110 + name_bytes).next_multiple_of(4);
            found.push((String::from_utf8_lossy(name).into_owned(), archive[data..data + size].to_vec()));
            at = (data + size).next_multiple_of(4);
        }
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/busybox", "init", "TRAILER!!!"]);
        assert_eq!(
            (found[1].1.as_slice(), found[2].1.as_slice()),
            (b"not really busybox" as &[u8], SCRIPT.as_bytes())
        );
    }
}
