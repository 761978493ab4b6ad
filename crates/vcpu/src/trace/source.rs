//! The bytes of a trace: plain, gzip or zstd, recognized by the first bytes.
//!
//! Files in both compressed formats may be concatenated (`cat a.zst b.zst`), and zstd files may have skippable
//! frames; all are read to the end. A truncated file is an error, never a shorter trace.

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::iter;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// Bytes needed to recognize the format.
const MAGIC: u64 = 6;

/// Formats that are not read: their first bytes, their names, and the command that converts a file.
const OTHERS: [(&[u8], &str, &str); 5] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"PERFILE2", "perf.data", "perf script -i"),
];

/// Why an input cannot be read.
pub(super) enum NoSource {
    Io(io::Error),
    /// Its format, and the command that converts it.
    Format(&'static str, &'static str),
}

/// Decompressed bytes, and the name of the compression format.
pub(super) struct Source {
    pub(super) bytes: Box<dyn Read + Send>,
    pub(super) format: Option<&'static str>,
}

impl Source {
    /// Reads the first bytes of `input` to recognize its format; may block.
    pub(super) fn detect(mut input: impl Read + Send + 'static) -> Result<Self, NoSource> {
        let mut head = Vec::new();
        input.by_ref().take(MAGIC).read_to_end(&mut head).map_err(NoSource::Io)?;
        let other =
            OTHERS.iter().find(|(magic, ..)| head.starts_with(&magic[..magic.len().min(MAGIC as usize)]));
        if let Some(&(_, format, convert)) = other {
            return Err(NoSource::Format(format, convert));
        }
        let (gzip, zstd) = (head.starts_with(&GZIP), head.starts_with(&ZSTD));
        let all = Cursor::new(head).chain(input);
        Ok(if gzip {
            Self { bytes: Box::new(MultiGzDecoder::new(all)), format: Some("gzip") }
        } else if zstd {
            let frames = Frames { input: BufReader::new(all), frame: FrameDecoder::new() };
            Self { bytes: Box::new(frames), format: Some("zstd") }
        } else {
            Self { bytes: Box::new(all), format: None }
        })
    }
}

/// The content of all zstd frames of `input`, in order. Stores one window and one block.
struct Frames<R> {
    input: BufReader<R>,
    /// The current frame; "finished" before the first.
    frame: FrameDecoder,
}

impl<R: Read> Frames<R> {
    /// Opens the next frame with content. `false` at the end of the input.
    fn next(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.input.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(broken(&error)),
            }
        }
        Ok(false)
    }

    /// The decoder computes the checksum, but leaves the comparison to its caller.
    fn verify(&self) -> io::Result<()> {
        match self.frame.get_checksum_from_data() {
            Some(sum) if Some(sum) != self.frame.get_calculated_checksum() => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "checksum mismatch"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            if self.frame.can_collect() > 0 {
                return self.frame.read(buffer);
            }
            if self.frame.is_finished() {
                self.verify()?;
                if !self.next()? {
                    break;
                }
            } else {
                self.frame
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| broken(&error))?;
            }
        }
        Ok(0)
    }
}

/// A readable form of the decoder's error, which itself names internal states.
fn broken(error: &(dyn Error + 'static)) -> io::Error {
    let causes = iter::successors(Some(error), |&error| error.source());
    let ended = |cause: &io::Error| cause.kind() == io::ErrorKind::UnexpectedEof;
    if causes.filter_map(|cause| cause.downcast_ref()).any(ended) {
        return io::ErrorKind::UnexpectedEof.into();
    }
    io::Error::new(io::ErrorKind::InvalidData, "the data is damaged")
}
