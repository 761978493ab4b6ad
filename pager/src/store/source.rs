//! Where a template comes from: opened at first need, and again by its version for guests that began with it.

use super::{Library, StoreError, Template};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The origin of the templates of some guests: a name in a store, or an image. A process that starts while the template
/// cannot be opened still serves the guests of other templates, and the guests that began with this one.
///
/// A clone of the value refers to the same origin.
///
/// ```
/// # use slat_pager::*;
/// # let folder = std::env::temp_dir().join(format!("slat-pager-doc-source-{}", std::process::id()));
/// let library = Library::new(Folder::open(&folder)?);
/// let source = TemplateSource::of_library(&library, "late");
/// assert!(matches!(source.open(), Err(StoreError::Missing(_))));
/// library.snapshot("late", &[7; 4096][..], 4096, 4096)?;
/// assert_eq!(source.open()?.size(), 4096);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TemplateSource(Arc<Inner>);

struct Inner {
    origin: Origin,
    opened: Mutex<Opened>,
}

/// The template of new guests.
#[derive(Default)]
struct Opened {
    template: Option<Template>,
    /// The version that it must have.
    version: Option<String>,
}

enum Origin {
    Library(Library, String),
    Image(PathBuf),
    Nbd(String),
    Opened(Template),
}

impl TemplateSource {
    /// Refers to a template of a store.
    pub fn of_library(library: &Library, name: &str) -> Self {
        Self::new(Origin::Library(library.clone(), name.into()))
    }

    /// Refers to an image of guest memory: [`Template::of_image`].
    pub fn of_image(path: &Path) -> Self {
        Self::new(Origin::Image(path.into()))
    }

    /// Refers to an image on an NBD server: [`Template::of_nbd`].
    pub fn of_nbd(address: &str) -> Self {
        Self::new(Origin::Nbd(address.into()))
    }

    fn new(origin: Origin) -> Self {
        Self(Arc::new(Inner { origin, opened: Mutex::default() }))
    }

    /// Returns the name of the template, the path of the image, or its address.
    pub fn name(&self) -> String {
        match &self.0.origin {
            Origin::Library(_, name) | Origin::Nbd(name) => name.clone(),
            Origin::Image(path) => path.display().to_string(),
            Origin::Opened(template) => template.name().into(),
        }
    }

    /// Returns the template of new guests. Opens it if it is not open yet: the newest version, unless another one is
    /// [pinned](Self::pin). Later calls return the same one. May sleep.
    ///
    /// # Errors
    /// The template's, and the next call tries again.
    pub fn open(&self) -> Result<Template, StoreError> {
        let mut opened = self.0.opened.lock();
        if let Some(template) = &opened.template {
            return Ok(template.clone());
        }
        let template = match &opened.version {
            Some(version) => self.version(version),
            None => self.newest(),
        }?;
        *opened = Opened { version: Some(template.version().into()), template: Some(template.clone()) };
        Ok(template)
    }

    /// Returns whether the template of new guests is open. Does not wait for a thread that opens it.
    pub fn is_open(&self) -> bool {
        self.0.opened.try_lock().is_some_and(|opened| opened.template.is_some())
    }

    /// Makes this version the one that is opened, so that a process that follows another one serves the same. It has no
    /// effect on a template that is open.
    pub fn pin(&self, version: &str) {
        self.0.opened.lock().version = Some(version.into());
    }

    /// Opens the newest version, for new guests from now on. May sleep.
    ///
    /// # Errors
    /// The template's. If it is not in the store any more, new guests have none; otherwise they still get the version of
    /// before.
    pub fn reload(&self) -> Result<Template, StoreError> {
        let newest = self.newest();
        match &newest {
            Ok(template) => {
                let (template, version) = (Some(template.clone()), Some(template.version().into()));
                *self.0.opened.lock() = Opened { template, version };
            }
            Err(StoreError::Missing(_)) => *self.0.opened.lock() = Opened::default(),
            Err(_) => {}
        }
        newest
    }

    /// Opens this version of the template, for a guest that began with it and continues. In a store it may have been
    /// replaced or removed since, while a lease pins it. May sleep.
    ///
    /// # Errors
    /// The image file has changed; or an error of the store.
    pub fn at(&self, version: &str) -> Result<Template, StoreError> {
        match self.open() {
            Ok(template) => template.at(version),
            Err(_) => self.version(version),
        }
    }

    fn newest(&self) -> Result<Template, StoreError> {
        match &self.0.origin {
            Origin::Library(library, name) => library.open(name),
            Origin::Image(path) => Template::of_image(path),
            Origin::Nbd(address) => Template::of_nbd(address),
            Origin::Opened(template) => Ok(template.clone()),
        }
    }

    fn version(&self, version: &str) -> Result<Template, StoreError> {
        match (self.newest(), &self.0.origin) {
            (Ok(template), _) => template.at(version),
            (Err(_), Origin::Library(library, name)) => library.open_version(name, version),
            (Err(error), _) => Err(error),
        }
    }
}

impl From<Template> for TemplateSource {
    fn from(template: Template) -> Self {
        Self::new(Origin::Opened(template))
    }
}
