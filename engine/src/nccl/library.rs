//! The library's functions, looked up once by name: the one place that calls it.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::Library as Loaded;

use super::layout::{
    Config, FLOAT32, ID_BYTES, IN_PROGRESS, OLDEST, SUCCESS, SUM, UniqueId, version_text,
};
use crate::backend::driver::{Vendor, mapped_file};
use crate::library::functions;

/// A handle that only the library turns into a pointer.
type RawComm = usize;

/// Only the stand-in for CPU-only machines has it.
const STAND_IN: &str = "ds4_simulated_nccl";

/// Why there is no library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// None can be loaded.
    NoLibrary {
        /// Whose devices it should sum on.
        vendor: Vendor,
        /// What the system's loader said about the first name.
        detail: String,
    },
    /// Something of its name lacks functions.
    WrongLibrary {
        /// The file that was loaded.
        path: PathBuf,
        /// The functions that it lacks.
        missing: Vec<&'static str>,
    },
    /// Its calls would block.
    TooOld {
        /// The file that was loaded.
        path: PathBuf,
        /// The code of its version.
        version: u32,
    },
    /// It does not even say its version.
    NoVersion {
        /// The file that was loaded.
        path: PathBuf,
        /// What it answered.
        error: CallError,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary { vendor, detail } => write!(
                f,
                "{} cannot be loaded ({detail}); install {}, or put its folder into \
                 LD_LIBRARY_PATH",
                names(*vendor).join(" or "),
                match vendor {
                    Vendor::Cuda => "NCCL (libnccl2, or nvidia-nccl-cu12 of PyPI)",
                    Vendor::Hip => "RCCL (rccl of ROCm)",
                }
            ),
            Self::WrongLibrary { path, missing } => write!(
                f,
                "{} lacks {}; update it to {} or newer, or take it off the library path",
                path.display(),
                missing.join(", "),
                version_text(OLDEST)
            ),
            Self::TooOld { path, version } => write!(
                f,
                "{} is version {}, whose calls would wait without a deadline; update it to {} or \
                 newer",
                path.display(),
                version_text(*version),
                version_text(OLDEST)
            ),
            Self::NoVersion { path, error } => {
                write!(f, "{} does not say its version: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The function.
    pub call: &'static str,
    /// Its result.
    pub code: u32,
    /// What the library says about it.
    pub detail: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (result {})", self.call, self.detail, self.code)
    }
}

impl std::error::Error for CallError {}

// As nccl.h says since 2.14; handles are pointers, and enums integers of 32 bits.
functions! {
    version(*mut c_int) -> u32 = "ncclGetVersion";
    unique_id(*mut UniqueId) -> u32 = "ncclGetUniqueId";
    init(*mut RawComm, c_int, UniqueId, c_int, *const Config) -> u32 = "ncclCommInitRankConfig";
    async_error(RawComm, *mut u32) -> u32 = "ncclCommGetAsyncError";
    all_reduce(u64, u64, usize, u32, u32, RawComm, usize) -> u32 = "ncclAllReduce";
    finalize(RawComm) -> u32 = "ncclCommFinalize";
    destroy(RawComm) -> u32 = "ncclCommDestroy";
    abort(RawComm) -> u32 = "ncclCommAbort";
    error_string(u32) -> *const c_char = "ncclGetErrorString";
    last_error(RawComm) -> *const c_char = "ncclGetLastError";
}

/// The names under which the library is looked for.
const fn names(vendor: Vendor) -> [&'static str; 2] {
    match vendor {
        Vendor::Cuda => ["libnccl.so.2", "libnccl.so"],
        Vendor::Hip => ["librccl.so.1", "librccl.so"],
    }
}

/// A library that was found and is new enough.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    vendor: Vendor,
    path: PathBuf,
    version: u32,
    stands_in: bool,
    stuck: AtomicBool,
}

/// A rank's membership of a group of ranks. It ends with [`Library::leave`] or [`Library::abort`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comm(RawComm);

impl Library {
    /// Loads the library that sums on the vendor's devices, and keeps it for good.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(vendor: Vendor) -> Result<Self, LoadError> {
        let mut failure = None;
        let found = names(vendor).into_iter().find_map(|name| {
            // SAFETY: loading it runs its initialisers, which is what the user asks for.
            let loaded = unsafe { Loaded::new(name) };
            let keep = |error: libloading::Error| {
                let said = std::error::Error::source(&error).map(ToString::to_string);
                failure.get_or_insert(said.unwrap_or_else(|| error.to_string()));
            };
            loaded.map_err(keep).ok()
        });
        let Some(loaded) = found else {
            let detail = failure.unwrap_or_default();
            return Err(LoadError::NoLibrary { vendor, detail });
        };
        // Threads of the library's own may outlive every user of it.
        let loaded: &'static Loaded = Box::leak(Box::new(loaded));
        let path = path_of(loaded, vendor);
        let functions = match Functions::load(loaded) {
            Ok(functions) => functions,
            Err(missing) => return Err(LoadError::WrongLibrary { path, missing }),
        };
        // SAFETY: the symbol is only looked for.
        let stands_in = unsafe { loaded.get::<unsafe extern "C" fn()>(STAND_IN) }.is_ok();
        let mut library = Self {
            functions,
            vendor,
            path,
            version: 0,
            stands_in,
            stuck: AtomicBool::new(false),
        };
        let mut version = 0;
        // SAFETY: the place is valid.
        let told = unsafe { (library.functions.version)(&raw mut version) };
        let path = library.path.clone();
        if let Err(error) = library.judge("ncclGetVersion", told, None) {
            return Err(LoadError::NoVersion { path, error });
        }
        library.version = u32::try_from(version).unwrap_or(0);
        if library.version < OLDEST {
            let version = library.version;
            return Err(LoadError::TooOld { path, version });
        }
        Ok(library)
    }

    /// Whose devices it sums on.
    #[must_use]
    pub const fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The code of its version.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Name, version and the file that was loaded, so that a stand-in cannot pass for the library.
    #[must_use]
    pub fn origin(&self) -> String {
        let stand_in = if self.stands_in {
            ", a SIMULATED stand-in"
        } else {
            ""
        };
        format!(
            "{} {} from {}{stand_in}",
            library_name(self.vendor),
            version_text(self.version),
            self.path.display()
        )
    }

    /// Whether a call of it never returned: work of its may still be on the devices, so that whoever
    /// frees memory or waits for a device may wait for ever.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(super) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
    }

    pub(super) fn unique_id(&self) -> Result<[u8; ID_BYTES], CallError> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: the place is valid.
        let result = unsafe { (self.functions.unique_id)(&raw mut id) };
        self.judge("ncclGetUniqueId", result, None)?;
        Ok(id.0)
    }

    /// Begins to join a group on the calling thread's device; [`Library::state`] says when it is
    /// done.
    pub(super) fn join(
        &self,
        id: [u8; ID_BYTES],
        (rank, ranks): (u32, u32),
    ) -> Result<Comm, CallError> {
        let number = |value| c_int::try_from(value).unwrap_or(c_int::MAX);
        let (mut comm, config) = (0, Config::NON_BLOCKING);
        // SAFETY: the places are valid, and the configuration says how long it is.
        let result = unsafe {
            (self.functions.init)(
                &raw mut comm,
                number(ranks),
                UniqueId(id),
                number(rank),
                &raw const config,
            )
        };
        self.judge("ncclCommInitRankConfig", result, None)?;
        if comm == 0 {
            return Err(CallError {
                call: "ncclCommInitRankConfig",
                code: result,
                detail: "no communicator came back".to_owned(),
            });
        }
        Ok(Comm(comm))
    }

    /// Whether everything that was begun is done; `call` is what an error is laid to.
    pub(super) fn state(&self, comm: &Comm, call: &'static str) -> Result<bool, CallError> {
        let mut state = 0;
        // SAFETY: the communicator is live and the place is valid.
        let result = unsafe { (self.functions.async_error)(comm.0, &raw mut state) };
        self.judge("ncclCommGetAsyncError", result, Some(comm))?;
        self.judge(call, state, Some(comm))?;
        Ok(state != IN_PROGRESS)
    }

    /// Begins to sum `count` 32-bit floats of all ranks, in the order of a stream.
    ///
    /// Both places hold as many until the work is done: as for every address that a backend takes,
    /// its owner sees to it.
    pub(super) fn sum(
        &self,
        comm: &Comm,
        (from, to): (u64, u64),
        count: usize,
        stream: usize,
    ) -> Result<(), CallError> {
        // SAFETY: the communicator and the stream are live; the library touches no host memory.
        let result =
            unsafe { (self.functions.all_reduce)(from, to, count, FLOAT32, SUM, comm.0, stream) };
        self.judge("ncclAllReduce", result, Some(comm))
    }

    /// Begins to end what is under way in order.
    pub(super) fn finalize(&self, comm: &Comm) -> Result<(), CallError> {
        // SAFETY: the communicator is live.
        let result = unsafe { (self.functions.finalize)(comm.0) };
        self.judge("ncclCommFinalize", result, Some(comm))
    }

    /// Gives back a communicator that was finalised.
    pub(super) fn leave(&self, comm: Comm) -> Result<(), CallError> {
        // SAFETY: the communicator is live, and nobody has it any more.
        let result = unsafe { (self.functions.destroy)(comm.0) };
        self.judge("ncclCommDestroy", result, None)
    }

    /// Ends what is under way on the device, and gives the communicator back.
    pub(super) fn abort(&self, comm: Comm) -> Result<(), CallError> {
        // SAFETY: the communicator is live, and nobody has it any more.
        let result = unsafe { (self.functions.abort)(comm.0) };
        self.judge("ncclCommAbort", result, None)
    }

    fn judge(&self, call: &'static str, code: u32, comm: Option<&Comm>) -> Result<(), CallError> {
        if matches!(code, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: it takes any number.
        let said = text(unsafe { (self.functions.error_string)(code) });
        let raw = comm.map_or_else(RawComm::default, |comm| comm.0);
        // SAFETY: it takes a live communicator or none.
        let more = text(unsafe { (self.functions.last_error)(raw) });
        let detail = match (said.is_empty(), more.is_empty()) {
            (false, false) => format!("{said}: {more}"),
            (false, true) => said,
            (true, false) => more,
            (true, true) => "unknown error".to_owned(),
        };
        Err(CallError { call, code, detail })
    }
}

/// The library's name of a vendor.
const fn library_name(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Cuda => "NCCL",
        Vendor::Hip => "RCCL",
    }
}

/// What the library says, on one line and no longer than a person reads.
fn text(said: *const c_char) -> String {
    const CHARACTERS_MAX: usize = 200;
    if said.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a NUL and are not changed while they are copied.
    let said = unsafe { CStr::from_ptr(said) }.to_string_lossy();
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ").chars().take(CHARACTERS_MAX).collect()
}

/// The file that the library's code was mapped from.
fn path_of(loaded: &'static Loaded, vendor: Vendor) -> PathBuf {
    // SAFETY: the function is only looked at, never called.
    let found = unsafe { loaded.get::<unsafe extern "C" fn()>("ncclGetVersion") };
    let file = found
        .ok()
        .and_then(|function| mapped_file(*function as usize));
    let [name, _] = names(vendor);
    file.unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_names_what_to_do_or_what_was_found() {
        let path = PathBuf::from("/opt/libnccl.so.2");
        let errors = [
            LoadError::NoLibrary {
                vendor: Vendor::Cuda,
                detail: "no such file".to_owned(),
            },
            LoadError::WrongLibrary {
                path: path.clone(),
                missing: vec!["ncclCommFinalize"],
            },
            LoadError::TooOld {
                path: path.clone(),
                version: 21_304,
            },
        ];
        insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @r"
        libnccl.so.2 or libnccl.so cannot be loaded (no such file); install NCCL (libnccl2, or nvidia-nccl-cu12 of PyPI), or put its folder into LD_LIBRARY_PATH
        /opt/libnccl.so.2 lacks ncclCommFinalize; update it to 2.14.0 or newer, or take it off the library path
        /opt/libnccl.so.2 is version 2.13.4, whose calls would wait without a deadline; update it to 2.14.0 or newer
        ");
    }
}
