//! Tables that describe the processors to the kernel: ACPI's MADT, for KVM's interrupt controllers, and the two tables
//! that lead to it. There are no other ACPI tables; the kernel reports that, and continues.

/// Address of the first table: the last KiB below 640 KiB.
pub const AT: u64 = 0x9_fc00;

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const OWNER: &[u8] = b"SLAT  ";

/// Returns the tables for `processors` processors, for the address [`AT`].
pub fn tables(processors: u8) -> Vec<u8> {
    const POINTER: u64 = 36;
    const ROOT: u64 = HEADER as u64 + 8;
    let root = AT + POINTER;
    let controllers = table("APIC", 5, &controllers(processors));
    let root_table = table("XSDT", 1, &(root + ROOT).to_le_bytes());

    let mut pointer = [&b"RSD PTR "[..], &[0], OWNER, &[2], &[0; 4]].concat();
    pointer[8] = missing(&pointer);
    pointer.extend([&(POINTER as u32).to_le_bytes()[..], &root.to_le_bytes(), &[0; 4]].concat());
    pointer[32] = missing(&pointer);
    [pointer, root_table, controllers].concat()
}

/// Returns the body of the MADT.
fn controllers(processors: u8) -> Vec<u8> {
    const OLD_CONTROLLERS: u32 = 1;
    let mut bytes = [LOCAL_APIC.to_le_bytes(), OLD_CONTROLLERS.to_le_bytes()].concat();
    for id in 0..processors {
        bytes.extend([0, 8, id, id, 1, 0, 0, 0]);
    }
    bytes.extend([&[1, 12, processors, 0][..], &IO_APIC.to_le_bytes(), &[0; 4]].concat());
    // The timer's interrupt, 0 on the ISA bus, goes to input 2; NMIs go to input 1 of each local APIC.
    bytes.extend([2, 10, 0, 0, 2, 0, 0, 0, 0, 0]);
    bytes.extend([4, 6, 0xff, 0, 0, 1]);
    bytes
}

/// Bytes of a table's header.
const HEADER: usize = 36;

fn table(name: &str, revision: u8, body: &[u8]) -> Vec<u8> {
    let len = (HEADER + body.len()) as u32;
    let mut bytes =
        [name.as_bytes(), &len.to_le_bytes()[..], &[revision, 0], OWNER, b"SLAT VMM", &[0; 12], body]
            .concat();
    bytes[9] = missing(&bytes);
    bytes
}

/// Returns the byte that makes the sum of all bytes 0.
fn missing(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_sub(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lead_to_each_other_add_up_to_0_and_fit() {
        let len = |table: &[u8]| u32::from_le_bytes(table[4..8].try_into().unwrap()) as usize;
        let address = |bytes: &[u8]| (u64::from_le_bytes(bytes.try_into().unwrap()) - AT) as usize;
        for processors in 1..=8 {
            let bytes = tables(processors);
            assert_eq!((missing(&bytes[..20]), missing(&bytes[..36])), (0, 0));
            let root = &bytes[address(&bytes[24..32])..];
            assert_eq!((&root[..4], missing(&root[..len(root)])), (&b"XSDT"[..], 0));
            let controllers = &bytes[address(&root[36..44])..];
            assert_eq!((&controllers[..4], missing(controllers)), (&b"APIC"[..], 0));
            assert_eq!(len(controllers), controllers.len());
            assert_eq!(controllers.len(), 44 + 8 * usize::from(processors) + 12 + 10 + 6);
            assert!(bytes.len() <= 1024);
        }
    }
}
