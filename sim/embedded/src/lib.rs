//! The simulated driver libraries, and a stand-in for NCCL over them, as bytes, and ways to use them: written where another program
//! loads them in place of the real ones, or loaded into this one.
//!
//! Built by `build.rs` from `ds4-driver` and `ds4-nccl`. Programs for other systems than Linux, and statically
//! linked ones, hold none.

mod loaded;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use loaded::Loaded;

/// A driver that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// The CUDA driver API, `libcuda`.
    Cuda,
    /// The HIP runtime, `libamdhip64`.
    Hip,
}

impl Interface {
    /// The library's bytes; empty where none was built.
    #[must_use]
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Self::Cuda => include_bytes!(concat!(env!("OUT_DIR"), "/cuda.so")),
            Self::Hip => include_bytes!(concat!(env!("OUT_DIR"), "/hip.so")),
        }
    }

    /// The names under which programs look for the library, its soname first.
    #[must_use]
    pub const fn file_names(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcuda.so", "libcuda.so.1"],
            Self::Hip => &[
                "libamdhip64.so",
                "libamdhip64.so.5",
                "libamdhip64.so.6",
                "libamdhip64.so.7",
            ],
        }
    }

    /// Writes the library into a folder, under every name; returns the path of the first.
    ///
    /// # Errors
    /// Of writing, and [`io::ErrorKind::Unsupported`] where no library was built.
    pub fn write_to(self, folder: &Path) -> io::Result<PathBuf> {
        write_names(folder, self.bytes(), self.file_names())
    }
}

/// The stand-in for NCCL, and for RCCL, whose interface is the same; empty where none was built.
#[must_use]
pub fn nccl_bytes() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/nccl.so"))
}

/// Writes the stand-in for NCCL and RCCL into a folder, under both names; returns the path of the
/// first. It runs on simulated drivers alone.
///
/// # Errors
/// As [`Interface::write_to`].
pub fn write_nccl_to(folder: &Path) -> io::Result<PathBuf> {
    write_names(folder, nccl_bytes(), &["libnccl.so.2", "librccl.so.1"])
}

fn write_names(folder: &Path, bytes: &[u8], names: &[&str]) -> io::Result<PathBuf> {
    if bytes.is_empty() {
        let problem = "this build of ds4 holds no simulated drivers: they are for Linux";
        return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
    }
    let mut names = names.iter();
    let first = folder.join(names.next().copied().unwrap_or_default());
    write_new(&first, bytes)?;
    for name in names {
        // A name of the same file: a program that asks for two names gets one driver.
        std::fs::hard_link(&first, folder.join(name))?;
    }
    Ok(first)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut File::create_new(path)?, bytes)
}
