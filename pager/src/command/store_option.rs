//! `--store`, `--store-timeout` and `--disk-cache`.

use super::events::Event;
use super::failure::{Failure, other, size};
use super::log::say;
use slat_pager::{Disk, Folder, Library, Steady, SteadyOptions, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const STORE: &str = "The store: a folder, or s3://BUCKET/PREFIX, configured by AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, \
                     AWS_SECRET_ACCESS_KEY and AWS_CA_BUNDLE";

/// A store.
#[derive(clap::Args, Clone)]
pub struct StoreOption {
    #[arg(long, value_name = "STORE", help = STORE, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub store: Option<String>,
    /// Time limit of an S3 call, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    store_timeout: Duration,
}

/// A disk between the store and memory.
#[derive(clap::Args)]
pub struct DiskOption {
    /// Keep chunks that were read from the store in this folder, also for later daemons. The daemons of a host may share it
    #[arg(long, value_name = "FOLDER", requires = "store")]
    disk_cache: Option<PathBuf>,
    /// Most bytes of that folder; 64M at least. The chunks that were used longest ago are removed
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = limit, requires = "disk_cache")]
    disk_cache_limit: u64,
}

/// A chunk may have a sixteenth of the limit.
fn limit(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < 64 << 20 => {
            Err(format!("{text:?} is too small for a folder of chunks: 64M at least"))
        }
        bytes => Ok(bytes as u64),
    }
}

impl DiskOption {
    /// Lets a library use the disk, if there is one.
    pub fn on(&self, library: Library) -> Library {
        let tell = |line: &str| say(Event::DiskCache, serde_json::json!({ "state": line }));
        match &self.disk_cache {
            Some(folder) => library.on_disk(Disk::new(folder, self.disk_cache_limit, tell)),
            None => library,
        }
    }
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds"))
}

impl StoreOption {
    /// Opens the templates of the store, which must be there.
    pub fn library(&self) -> Result<Library, Failure> {
        if let Some(folder) = self.folder()
            && !folder.is_dir()
        {
            return Err(other(format!(
                "{}: no such store; `slat-pager snapshot` makes one",
                folder.display()
            )));
        }
        Ok(Library::new(self.steady(|store| store)?))
    }

    /// Opens the templates of the store, to add one. Makes the folder.
    pub fn library_to_write(&self) -> Result<Library, Failure> {
        if let Some(folder) = self.folder() {
            Folder::open(folder).map_err(|error| other(format!("{}: {error}", folder.display())))?;
        }
        self.library()
    }

    fn folder(&self) -> Option<&Path> {
        self.store.as_deref().filter(|store| !store.contains("://")).map(Path::new)
    }

    /// Opens the store, wrapped by `wrap`. A folder need not be there now.
    pub fn steady(&self, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Result<Steady, Failure> {
        let Some(store) = &self.store else { return Err(other("no store: add --store STORE")) };
        let mut options = SteadyOptions::default();
        let place: Arc<dyn Store> = if let Some(rest) = store.strip_prefix("s3://") {
            self.bucket(rest)?
        } else if let Some((scheme, _)) = store.split_once("://") {
            return Err(other(format!("{store}: a store is a folder or s3://…; {scheme}:// is unknown")));
        } else {
            // A local store answers at once.
            options.hedge = None;
            Arc::new(Folder::at(store))
        };
        Ok(Steady::new(wrap(place), options))
    }

    #[cfg(feature = "s3")]
    fn bucket(&self, rest: &str) -> Result<Arc<dyn Store>, Failure> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(other("s3:// has no bucket; write s3://BUCKET/PREFIX"));
        }
        let named = |error| other(format!("s3://{rest}: {error}"));
        Ok(Arc::new(slat_pager::s3(bucket, prefix, self.store_timeout).map_err(named)?))
    }

    #[cfg(not(feature = "s3"))]
    #[expect(clippy::unused_self, reason = "with S3 it is used")]
    fn bucket(&self, rest: &str) -> Result<Arc<dyn Store>, Failure> {
        let what =
            "this slat-pager was built without S3; build it in pager/ by cargo build --release --features s3";
        Err(other(format!("s3://{rest}: {what}")))
    }
}
