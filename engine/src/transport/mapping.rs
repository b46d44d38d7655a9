//! Memory that another process or a device writes.
//!
//! The other side may write at any time and may be hostile. So no reference to the shared bytes
//! is ever made: they are copied in and out through raw pointers, and every number found there is
//! judged by who reads it. What makes the bytes good is the order of the words: a writer stores one
//! with release after its bytes, a reader loads it with acquire before them.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

/// Shared memory of a fixed size.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is reached through raw copies and atomics alone, from any thread alike.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Whoever holds the file cannot shrink it below a reader's feet.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Asks before the system does: it would end the process with a signal, not refuse.
fn demand_size(bytes: usize) -> io::Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    match limit.filter(|limit| u64::try_from(bytes).is_ok_and(|bytes| bytes > *limit)) {
        None => Ok(()),
        Some(limit) => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "it takes a file of {bytes} bytes in memory, and the limit of a file (RLIMIT_FSIZE) is \
                 {limit}: raise it with `ulimit -f`, or use tcp"
            ),
        )),
    }
}

impl Mapping {
    /// New memory, zeroed, and the file that stands for it: send it to who shall share it.
    ///
    /// # Errors
    /// The process may not have files of that size; or the system's.
    pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        demand_size(bytes)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("ds4-gates", flags)?;
        ftruncate(&file, u64::try_from(bytes).unwrap_or(u64::MAX))?;
        fcntl_add_seals(&file, seals())?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Maps what a peer created with the same size.
    ///
    /// # Errors
    /// The file has another size or could be shrunk; or the system's.
    pub fn open(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let size = fstat(file)?.st_size;
        let sealed = fcntl_get_seals(file)?.contains(seals());
        if u64::try_from(size).ok() != u64::try_from(bytes).ok() || !sealed {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's memory has another size or no seals",
            ));
        }
        Self::map(file, bytes)
    }

    fn map(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the system's choice touches no other memory; the
        // file's size was set or checked above and is sealed.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("the system mapped memory at address 0"))?;
        Ok(Self { base, bytes })
    }

    /// Where it begins, for devices that reach it by themselves.
    pub(super) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes that it has.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A word at an offset that is a multiple of 8.
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let inside = offset.is_multiple_of(8) && self.holds(offset, 8);
        inside.then(|| {
            // SAFETY: the offset lies inside the mapping, which lives as long as `self`.
            let place = unsafe { self.base.as_ptr().add(offset) };
            // SAFETY: mappings begin on pages and the offset is a multiple of 8, so the place is
            // aligned; both processes reach it as an atomic alone.
            unsafe { AtomicU64::from_ptr(place.cast::<u64>()) }
        })
    }

    /// Copies bytes in; false when they do not fit there.
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let inside = self.holds(offset, from.len());
        if inside {
            // SAFETY: the offset lies inside the mapping.
            let place = unsafe { self.base.as_ptr().add(offset) };
            // SAFETY: the range lies inside the mapping; `from` is the caller's own memory, which
            // no mapping of this type overlaps.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), place, from.len()) };
        }
        inside
    }

    /// Copies bytes out; false when they do not lie there.
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let inside = self.holds(offset, to.len());
        if inside {
            // SAFETY: the offset lies inside the mapping.
            let place = unsafe { self.base.as_ptr().add(offset) };
            // SAFETY: the range lies inside the mapping; `to` is the caller's own memory, which no
            // mapping of this type overlaps.
            unsafe { ptr::copy_nonoverlapping(place, to.as_mut_ptr(), to.len()) };
        }
        inside
    }

    fn holds(&self, offset: usize, bytes: usize) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and size are those of the mapping that was made, and nothing borrows it any
        // more. An error would leave it mapped, which harms nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_mappings_show_the_same_bytes_and_nothing_beyond_the_end() {
        let (one, file) = Mapping::create(8192).unwrap();
        let two = Mapping::open(&file, 8192).unwrap();
        assert!(one.write(8189, b"end") && !one.write(8190, b"end"));
        let mut seen = [0; 3];
        assert!(two.read(8189, &mut seen) && !two.read(usize::MAX, &mut seen));
        assert_eq!(&seen, b"end");
        one.word(0).unwrap().store(7, Ordering::Release);
        assert_eq!(two.word(0).unwrap().load(Ordering::Acquire), 7);
        assert!(one.word(4).is_none() && one.word(8192).is_none());
        assert!(Mapping::open(&file, 4096).is_err(), "another size");
        assert!(ftruncate(&file, 0).is_err(), "sealed");
    }

    /// The limit holds for a whole process and its excess ends it, so the test runs itself in another.
    #[test]
    fn a_limit_of_files_below_the_size_is_an_error_that_names_both() {
        const CHILD: &str = "DS4_TEST_FILE_LIMIT";
        if std::env::var_os(CHILD).is_some() {
            let mut limit = getrlimit(Resource::Fsize);
            limit.current = Some(4096);
            rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
            assert!(Mapping::create(4096).is_ok());
            let why = Mapping::create(8192).unwrap_err().to_string();
            assert!(
                why.contains("8192") && why.contains("(RLIMIT_FSIZE) is 4096"),
                "{why}"
            );
            return;
        }
        let name = "transport::mapping::tests::a_limit_of_files_below_the_size_is_an_error_that_names_both";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = child.args(["--exact", name]).env(CHILD, "1").output();
        let ran = ran.unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && said.contains("1 passed"),
            "{}: {said}",
            ran.status
        );
    }
}
