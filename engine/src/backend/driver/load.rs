//! Finding a driver at run time, and what can go wrong with that.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;
use libloading::Library;

use crate::device::Ordinal;

use super::Vendor;
use super::status::{INVALID_DEVICE, NO_DEVICE};
use super::table::Functions;

/// The sonames of the HIP runtime, the newest first.
const HIP_NAMES: [&str; 4] = [
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
];

/// Why real devices could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// No such driver is installed.
    NoDriver {
        /// Whose.
        vendor: Vendor,
    },
    /// A library of the driver's name lacks functions: it is too old, or something else.
    WrongLibrary {
        /// Whose it should be.
        vendor: Vendor,
        /// The file that was loaded.
        path: PathBuf,
        /// The functions that it lacks.
        missing: Vec<&'static str>,
    },
    /// The driver is there and does not start.
    NoStart {
        /// Whose.
        vendor: Vendor,
        /// The file that was loaded.
        path: PathBuf,
        /// What the driver said.
        detail: String,
    },
    /// The driver sees no device.
    NoDevice {
        /// Whose.
        vendor: Vendor,
        /// The file that was loaded.
        path: PathBuf,
    },
    /// A device that the driver does not see was asked for.
    UnknownDevice {
        /// Its number.
        ordinal: Ordinal,
        /// How many devices the driver sees.
        count: u32,
        /// Whose.
        vendor: Vendor,
    },
    /// Another process has the device for itself, or it takes no work.
    Unavailable {
        /// Its number.
        ordinal: Ordinal,
        /// What the driver said.
        detail: String,
    },
    /// A device could not be opened for another reason.
    Device {
        /// Its number.
        ordinal: Ordinal,
        /// The function that failed.
        call: &'static str,
        /// What the driver said.
        detail: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver { vendor } => write!(
                f,
                "no {vendor} driver: {} cannot be loaded; install {}, or use --backend sim",
                vendor.file_name(),
                vendor.package()
            ),
            Self::WrongLibrary {
                vendor,
                path,
                missing,
            } => write!(
                f,
                "{} is no {vendor} driver that ds4 can use: it lacks {}{}; update it, or take it off the library path",
                path.display(),
                missing
                    .iter()
                    .take(3)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", "),
                if missing.len() > 3 {
                    format!(" and {} more functions", missing.len() - 3)
                } else {
                    String::new()
                }
            ),
            Self::NoStart {
                vendor,
                path,
                detail,
            } => write!(
                f,
                "the {vendor} driver {} does not start: {detail}",
                path.display()
            ),
            Self::NoDevice { vendor, path } => write!(
                f,
                "the {vendor} driver {} sees no device; check {} and the device files, or use --backend sim",
                path.display(),
                vendor.visibility().join(", ")
            ),
            Self::UnknownDevice {
                ordinal,
                count,
                vendor,
            } => write!(
                f,
                "device {ordinal} is not there: the {vendor} driver sees {count} ({} renumbers them)",
                vendor.visibility().join(" or ")
            ),
            Self::Unavailable { ordinal, detail } => write!(
                f,
                "device {ordinal} is not available: {detail}; another process may have it in exclusive mode"
            ),
            Self::Device {
                ordinal,
                call,
                detail,
            } => write!(f, "device {ordinal} cannot be opened: {call}: {detail}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// A driver that was found and started.
#[derive(Clone, Debug)]
pub struct Driver {
    pub(super) vendor: Vendor,
    pub(super) functions: Arc<Functions>,
    pub(super) path: PathBuf,
    pub(super) count: u32,
    version: i32,
}

impl Driver {
    /// Loads and starts the vendor's driver.
    ///
    /// # Errors
    /// [`OpenError::NoDriver`], [`OpenError::WrongLibrary`], [`OpenError::NoStart`] and
    /// [`OpenError::NoDevice`].
    pub fn load(vendor: Vendor) -> Result<Self, OpenError> {
        let library = library(vendor).ok_or(OpenError::NoDriver { vendor })?;
        let path = file_of(library, vendor).unwrap_or_else(|| vendor.file_name().into());
        let functions = match Functions::load(vendor, library) {
            Ok(functions) => functions,
            Err(missing) => {
                return Err(OpenError::WrongLibrary {
                    vendor,
                    path,
                    missing,
                });
            }
        };
        let (mut count, mut version) = (0, 0);
        // SAFETY: it has no preconditions.
        let started = unsafe { functions.init(0) };
        // SAFETY: the driver has started, and the places are valid.
        let counted = started.and_then(|()| unsafe { functions.device_count(&raw mut count) });
        // SAFETY: as above.
        let told = counted.and_then(|()| unsafe { functions.version(&raw mut version) });
        match told {
            Ok(()) if count > 0 => Ok(Self {
                vendor,
                functions: Arc::new(functions),
                path,
                count: count.unsigned_abs(),
                version,
            }),
            Err(status) if !matches!(status.code, NO_DEVICE | INVALID_DEVICE) => {
                Err(OpenError::NoStart {
                    vendor,
                    detail: format!("{}: {}", status.call, functions.describe(status.code)),
                    path,
                })
            }
            _ => Err(OpenError::NoDevice { vendor, path }),
        }
    }

    /// How many devices it sees.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Vendor, version and the file that was loaded, so that a stand-in cannot pass for hardware.
    #[must_use]
    pub fn origin(&self) -> String {
        let (vendor, path) = (self.vendor, self.path.display());
        let (major, minor) = match vendor {
            Vendor::Cuda => (self.version / 1000, self.version % 1000 / 10),
            Vendor::Hip => (self.version / 10_000_000, self.version / 100_000 % 100),
        };
        format!("{vendor} driver {major}.{minor} from {path}")
    }
}

/// The vendor's library, loaded once and kept for good.
fn library(vendor: Vendor) -> Option<&'static Library> {
    static HIP: OnceLock<Option<Library>> = OnceLock::new();
    match vendor {
        Vendor::Cuda => {
            // SAFETY: loading a driver runs its initialisers, which is what the user asks for.
            let present = unsafe { sys::is_culib_present() };
            // SAFETY: it is present, so that this does not panic.
            present.then(|| unsafe { sys::culib() })
        }
        Vendor::Hip => HIP
            .get_or_init(|| {
                // SAFETY: loading a driver runs its initialisers, which is what the user asks for.
                let open = |name| unsafe { Library::new(name) }.ok();
                HIP_NAMES.into_iter().find_map(open)
            })
            .as_ref(),
    }
}

/// The file that a library's code was mapped from.
fn file_of(library: &'static Library, vendor: Vendor) -> Option<PathBuf> {
    let symbol: &[u8] = match vendor {
        Vendor::Cuda => b"cuInit",
        Vendor::Hip => b"hipInit",
    };
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    // SAFETY: the function is only looked at, never called.
    match unsafe { library.get::<unsafe extern "C" fn()>(symbol) } {
        Ok(function) => file_at(&maps, *function as usize),
        // Something else has the driver's name.
        Err(_) => file_named(&maps, vendor.file_name()),
    }
}

/// The file that the code at an address of this process was mapped from.
#[must_use]
pub fn mapped_file(address: usize) -> Option<PathBuf> {
    file_at(&std::fs::read_to_string("/proc/self/maps").ok()?, address)
}

/// The mapped file whose name begins as `library` does, up to its version.
fn file_named(maps: &str, library: &str) -> Option<PathBuf> {
    let stem = library.split(".so").next()?;
    maps.lines().find_map(|line| {
        let path = PathBuf::from(line.get(line.find('/')?..)?);
        let name = path.file_name()?.to_str()?;
        let rest = name.strip_prefix(stem)?;
        rest.starts_with(".so").then_some(path)
    })
}

/// The file whose mapping holds `address`, by the lines of `/proc/self/maps`.
fn file_at(maps: &str, address: usize) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = rest.get(rest.find('/')?..)?;
        (start..end).contains(&address).then(|| path.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_address_is_the_one_mapped_there() {
        let maps = "1000-2000 r-xp 00000000 fd:00 1  /lib/a b.so\n\
                    2000-3000 rw-p 00000000 00:00 0\n\
                    3000-4000 r-xp 00000000 fd:00 2  /lib/c.so (deleted)\n";
        assert_eq!(file_at(maps, 0x1fff), Some("/lib/a b.so".into()));
        assert_eq!(file_at(maps, 0x2000), None);
        assert_eq!(file_at(maps, 0x3000), Some("/lib/c.so (deleted)".into()));
        assert_eq!(file_at(maps, 0x4000), None);
        assert_eq!(
            file_named(maps, "c.so.1"),
            Some("/lib/c.so (deleted)".into())
        );
        assert_eq!(file_named(maps, "a.so.1"), None);
    }

    #[test]
    fn every_reason_names_what_to_do_or_what_was_found() {
        let errors = [
            OpenError::NoDriver {
                vendor: Vendor::Hip,
            },
            OpenError::WrongLibrary {
                vendor: Vendor::Cuda,
                path: "/opt/libcuda.so".into(),
                missing: vec!["cuInit", "cuDeviceGet", "cuMemAlloc_v2", "cuMemFree_v2"],
            },
            OpenError::UnknownDevice {
                ordinal: Ordinal(3),
                count: 2,
                vendor: Vendor::Cuda,
            },
        ];
        insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @r"
        no HIP driver: libamdhip64.so cannot be loaded; install the ROCm runtime, or use --backend sim
        /opt/libcuda.so is no CUDA driver that ds4 can use: it lacks cuInit, cuDeviceGet, cuMemAlloc_v2 and 1 more functions; update it, or take it off the library path
        device 3 is not there: the CUDA driver sees 2 (CUDA_VISIBLE_DEVICES renumbers them)
        ");
    }
}
