//! Tests of the reader: any split of the input, any bytes, any compression, and the bundled traces.

use super::flaw::LONGEST;
use super::*;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::collections::HashSet;
use std::io::{self, Read, Write};

/// Returns `bytes` in two pieces, or, with `cut` 0, byte by byte.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    cut: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = match self.cut {
            0 => self.at + 1,
            cut if self.at < cut => cut,
            _ => self.bytes.len(),
        };
        let end = end.min(self.bytes.len());
        let len = (&self.bytes[self.at..end]).read(buffer)?;
        self.at += len;
        Ok(len)
    }
}

/// Result of a reader: accesses; counts of lines, skipped, garbled.
type Seen = (Vec<Access>, [u64; 3]);

fn drain(reader: &mut Reader) -> Result<Seen, Error> {
    let mut all = Vec::new();
    // An odd batch size, so that batches end anywhere.
    while reader.fill(&mut all, 7)? > 0 {}
    Ok((all, [reader.lines(), reader.skipped(), reader.garbled()]))
}

fn read(bytes: &[u8]) -> Result<Seen, Error> {
    drain(&mut Reader::new("test", io::Cursor::new(bytes.to_vec()))?)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Records, other lines, garbled and overlong lines; no newline at the end.
fn mixture() -> Vec<u8> {
    let mut text =
        b"==7== Lackey, an example tool\n\nI  04001234,3\n L 1ffefffff8,8\nthe program speaks\n".to_vec();
    text.extend(b" S 00000000000000ff,0016\r\n L 1ffeff\n M 421e0a0,4\n L 10,0\nI  what?\n");
    text.extend(b" L 00000000000000000000000000000000000000000000000000000000000000000000000000000001,8\n");
    text.extend([b'x'; 3 * LONGEST]);
    text.extend(b"\n S 20,4 and more, and more, and more, and more\n\0\xff\n L 30,1");
    text
}

#[test]
fn the_lines_of_a_mixture_are_classified() {
    let (all, counts) = read(&mixture()).unwrap();
    let lines: Vec<String> = all.iter().map(Access::to_string).collect();
    assert_eq!(
        lines,
        ["I  04001234,3", " L 1ffefffff8,8", " S 000000ff,16", " M 0421e0a0,4", " L 00000030,1"]
    );
    assert_eq!(counts, [15, 5, 5]);
}

#[test]
fn no_cut_of_the_input_changes_what_is_read() {
    let text = mixture();
    let whole = read(&text).unwrap();
    for buffer in [LONGEST, LONGEST + 1, LONGEST + 64, 4096] {
        for cut in 0..=text.len() {
            let input = Pieces { bytes: text.clone(), at: 0, cut };
            let mut reader = Reader::with_buffer("cut".into(), input, buffer).unwrap();
            assert_eq!(drain(&mut reader).unwrap(), whole, "buffer of {buffer}, cut at {cut}");
        }
    }
}

#[test]
fn a_line_without_end_is_counted_not_held() {
    let endless = io::repeat(b'x').take(64 << 20).chain(&b"\n L 40,8\n"[..]);
    let (all, counts) = drain(&mut Reader::new("endless", endless).unwrap()).unwrap();
    assert_eq!((all.len(), counts), (1, [2, 1, 0]));
}

#[test]
fn strict_stops_at_a_garbled_line_and_can_continue() {
    let text = "==1== start\n L 40,8\n L 41,\n L 42,8\n";
    let mut reader = Reader::new("t", text.as_bytes()).unwrap().strict(true);
    let mut batch = Vec::new();
    let error = reader.fill(&mut batch, 100).unwrap_err();
    let says = error.to_string();
    assert!(says.starts_with("t: line 3: no decimal size after the comma; the formats"), "{says}");
    assert_eq!(batch.len(), 1, "accesses before the error are returned");
    assert_eq!(reader.fill(&mut batch, 100).unwrap(), 1);
    assert_eq!(batch[1].addr, 0x42);
}

#[test]
fn a_lackey_trace_without_its_blanks_keeps_every_access() {
    let text = "I  04000000,3\nL 1fff000740,8\nS 1fff000748,8\nM 04033e06,1";
    let (all, counts) = drain(&mut Reader::new("t", text.as_bytes()).unwrap().strict(true)).unwrap();
    assert_eq!((all.len(), counts), (4, [4, 0, 0]));
    let indented: Vec<u8> = all.iter().flat_map(|access| format!("{access}\n").into_bytes()).collect();
    assert_eq!(read(&indented).unwrap().0, all);
}

#[test]
fn the_first_record_decides_the_format() {
    // A program's output between lackey's lines, and lines of lackey after other records.
    for (text, records) in [
        (" L 10,8\n0x20 R\n 20 W\nL 30,8\n", 2),
        ("0x20 R\nL 30,8\n0x40 W\n", 2),
        ("kvm_page_fault: address 0x1000 error_code 0x1\n0x20 R\nkvm_exit: reason 48\n", 1),
    ] {
        let (all, [lines, skipped, garbled]) = read(text.as_bytes()).unwrap();
        assert_eq!((all.len() as u64, garbled), (records, 0), "{text}");
        assert_eq!(lines, records + skipped, "{text}");
    }
}

#[test]
fn another_compression_is_an_error_that_says_how_to_convert() {
    for (head, says) in [
        (&b"\xfd7zXZ\0\0\0"[..], "t.xz: xz is not read: `xz -dc t.xz`"),
        (b"BZh91AY&SY", "`bzip2 -dc t.xz`"),
        (b"\x04\x22\x4d\x18....", "`lz4 -dc t.xz`"),
        (b"PK\x03\x04....", "drmemtrace"),
        (b"PERFILE2....", "`perf script -i t.xz`"),
    ] {
        let error = Reader::new("t.xz", head).err().unwrap().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn compression_is_recognized_by_content_and_concatenates() {
    let text = mixture();
    let whole = read(&text).unwrap();
    assert_eq!(read(&gzip(&text)).unwrap(), whole);
    assert_eq!(read(&zstd(&text)).unwrap(), whole);

    let (head, tail) = text.split_at(100);
    assert_eq!(read(&[gzip(head), gzip(tail)].concat()).unwrap(), whole);
    let skipped = [&0x184d_2a57_u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"any"].concat();
    assert_eq!(read(&[zstd(head), skipped.clone(), zstd(tail), skipped].concat()).unwrap(), whole);
}

#[test]
fn a_compressed_trace_cut_short_is_an_error_never_a_shorter_trace() {
    for (format, bytes) in [("gzip", gzip(&mixture())), ("zstd", zstd(&mixture()))] {
        for len in 4..bytes.len() {
            let error = read(&bytes[..len]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("test: broken {format} data: ")), "{len}: {error}");
            assert!(!error.contains('\n'));
        }
    }
}

#[test]
fn a_flipped_bit_in_compressed_content_is_noticed() {
    for bytes in [gzip(&mixture()), zstd(&mixture())] {
        // The content's checksum is at the end: gzip's before the length, zstd's last.
        let at = bytes.len() - if bytes[0] == 0x1f { 8 } else { 4 };
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(matches!(read(&bad), Err(Error::Compression { .. })));
    }
}

#[test]
fn an_unreadable_file_is_reported_in_one_line() {
    let missing = Reader::open("no/such/trace.gz").err().unwrap().to_string();
    assert!(missing.starts_with("cannot open no/such/trace.gz: "), "{missing}");
    let folder = Reader::open(env!("CARGO_MANIFEST_DIR")).err().unwrap().to_string();
    assert!(folder.starts_with("cannot read ") && !folder.contains('\n'), "{folder}");
}

#[test]
fn the_bundled_traces_are_whole_and_large() {
    let (mut records, mut widest) = (0, 0);
    for trace in bundled() {
        let mut reader = trace.reader().unwrap().strict(true);
        let (mut batch, mut pages) = (Vec::new(), HashSet::new());
        while reader.fill(&mut batch, 4096).unwrap() > 0 {
            pages.extend(batch.iter().map(|access| access.addr >> 12));
            records += batch.len();
            batch.clear();
        }
        assert!(reader.skipped() > 0, "{} says how it was made", trace.name);
        widest = widest.max(pages.len());
    }
    assert!(records >= 1_000_000, "{records} records");
    assert!(widest >= (64 << 20) / 4096, "{widest} pages");
}

fn access() -> impl Strategy<Value = Access> {
    let kind = prop_oneof![Just(Kind::Fetch), Just(Kind::Load), Just(Kind::Store), Just(Kind::Modify)];
    (0..Access::LIMIT, 0u32..57, 1..=Access::MAX_SIZE, kind).prop_map(|(addr, shift, size, kind)| Access {
        addr: (addr >> shift).min(Access::LIMIT - u64::from(size)),
        size,
        kind,
    })
}

/// Lines that are records, nearly records, or neither.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => access().prop_map(|access| access.to_string()),
        2 => "(I | L| S| M) [0-9a-f]{0,18}[, ]?[0-9]{0,6}\r?",
        1 => "[ILSMRW] (0x)?[0-9a-f]{0,8}(,[0-9]{1,2})?",
        1 => "(0x)?[0-9a-f]{1,9} [RWrw]( [0-9])?",
        1 => "x kvm_page_fault: address 0x[0-9a-f]{1,9} error_code 0x[0-9a-f]{1,9}",
        1 => "[ -~]{0,80}",
        1 => "0x[0-9a-f]{1,9} R[ ]{500,520}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..<_>::default() })]

    #[test]
    fn printed_records_are_read_back(all in prop::collection::vec(access(), 0..200)) {
        let text = all.iter().map(Access::to_string).collect::<Vec<_>>().join("\n");
        let count = all.len() as u64;
        prop_assert_eq!(read(text.as_bytes()).unwrap(), (all, [count, 0, 0]));
    }

    #[test]
    fn the_records_do_not_depend_on_buffer_or_cuts(
        lines in prop::collection::vec(line(), 0..40),
        buffer in LONGEST..LONGEST + 200,
        cut in 0usize..2000,
    ) {
        let text = lines.join("\n").into_bytes();
        let whole = read(&text).unwrap();
        prop_assert_eq!(whole.1[0], whole.0.len() as u64 + whole.1[1] + whole.1[2]);
        let mut reader = Reader::with_buffer("cut".into(), Pieces { bytes: text, at: 0, cut }, buffer).unwrap();
        prop_assert_eq!(drain(&mut reader).unwrap(), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic(magic in 0usize..3, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let head: [&[u8]; 3] = [b"", &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd]];
        // Either an error or a result is fine.
        let _ = read(&[head[magic], &bytes].concat());
    }

    #[test]
    fn damaged_compression_never_panics(at in any::<prop::sample::Index>(), flip in 1u8..) {
        for mut bytes in [gzip(&mixture()), zstd(&mixture())] {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = read(&bytes);
        }
    }
}
