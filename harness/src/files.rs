//! Writing files so that they are there whole or not at all, and reading none that never ends.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// How long one look at a pipe that says nothing takes.
const LOOK_MS: u16 = 100;
/// After so many looks in vain, ten seconds, a pipe is given up.
const LOOKS_MAX: u32 = 100;

/// Files under temporary names, beside the names that [`Staged::finish`] gives them.
///
/// Dropped before that, it removes them, and the folders that it made.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    files: Vec<(PathBuf, PathBuf)>,
    /// Folders that were not there before, outermost first.
    folders: Vec<PathBuf>,
}

impl Staged {
    /// Makes `folder` and those above it where they are missing.
    pub(crate) fn folder(&mut self, folder: &Path) -> io::Result<()> {
        let above = folder
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty());
        let missing: Vec<&Path> = above.take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev() {
            fs::create_dir(path)?;
            self.folders.push(path.to_owned());
        }
        Ok(())
    }

    /// Writes a file that will be `path`.
    pub(crate) fn write(
        &mut self,
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(hidden);
        let file = File::create_new(&partial)?;
        self.files.push((partial, path.to_owned()));
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        // Some file systems say only here that they are full.
        out.into_inner()?.sync_all()
    }

    /// Gives all files their names; a file that is there already is an error.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        for (_, path) in &self.files {
            if path.symlink_metadata().is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
        }
        for named in 0..self.files.len() {
            let Some((partial, path)) = self.files.get_mut(named) else {
                continue;
            };
            fs::rename(&partial, &path)?;
            // From here on this is the file to remove if a later one fails.
            partial.clone_from(path);
        }
        self.files.clear();
        self.folders.clear();
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What cannot be removed stays; the error that led here is the one to tell.
        for (partial, _) in &self.files {
            let _ = fs::remove_file(partial);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Writes one new file.
///
/// # Errors
/// What the file system or `fill` reports; then there is no file.
pub(crate) fn write_new(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut staged = Staged::default();
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    staged.write(path, fill)?;
    staged.finish()
}

/// Opens a file whose length and every place can be read: no folder, pipe or device.
///
/// # Errors
/// What the file system reports; [`io::ErrorKind::InvalidInput`] for anything else than a file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_now(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is a folder, pipe or device; name a regular file, to which a pipe's content was written",
    ))
}

/// Reads a short text from a file or a pipe, of which no more than `bytes_max` is looked at.
///
/// # Errors
/// What the file system reports; [`io::ErrorKind::Interrupted`] once `stop` is set;
/// [`io::ErrorKind::TimedOut`] if a pipe says nothing for ten seconds.
pub(crate) fn read_short(path: &Path, bytes_max: usize, stop: &AtomicBool) -> io::Result<String> {
    read_looking(path, bytes_max, stop, LOOKS_MAX)
}

fn read_looking(
    path: &Path,
    bytes_max: usize,
    stop: &AtomicBool,
    looks_max: u32,
) -> io::Result<String> {
    let mut file = open_now(path)?;
    let mut bytes = vec![0; bytes_max];
    let (mut filled, mut looks, mut hung_up) = (0_usize, 0, false);
    while let Some(free) = bytes.get_mut(filled..).filter(|free| !free.is_empty()) {
        match file.read(free) {
            // A pipe that nobody has opened yet to write to reads as one that has ended.
            Ok(0) if filled > 0 || hung_up || file.metadata()?.is_file() => break,
            Ok(0) => {}
            Ok(count) => {
                filled = filled.saturating_add(count);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        if looks >= looks_max {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "nobody writes to this pipe; start its writer first, or name a regular file",
            ));
        }
        looks = looks.saturating_add(1);
        hung_up = wait_for_bytes(&file)?;
    }
    bytes.truncate(filled);
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text"))
}

/// Opens without waiting: for a pipe's other end, for example.
#[cfg(unix)]
fn open_now(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

#[cfg(not(unix))]
fn open_now(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Waits for a while; true if the last writer has gone.
#[cfg(unix)]
fn wait_for_bytes(file: &File) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(LOOK_MS) * 1_000_000,
    };
    match poll(&mut fds, Some(&limit)) {
        // A signal may be what sets the stop.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let [fd] = fds;
    Ok(fd.revents().contains(PollFlags::HUP))
}

#[cfg(not(unix))]
fn wait_for_bytes(_file: &File) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn full(out: &mut BufWriter<File>) -> io::Result<()> {
        out.write_all(&[1; 100_000])?;
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn of_files_of_which_one_fails_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("new/inner");
        let mut staged = Staged::default();
        staged.folder(&folder).unwrap();
        staged
            .write(&folder.join("a"), |out| out.write_all(b"a"))
            .unwrap();
        let failed = staged.write(&folder.join("b"), full).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        drop(staged);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(write_new(&root.path().join("c"), full).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        write_new(&path, |out| out.write_all(b"first")).unwrap();
        let again = write_new(&path, |out| out.write_all(b"second")).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    fn pipe(folder: &Path) -> PathBuf {
        let path = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    }

    #[test]
    fn a_pipe_is_no_regular_file_and_without_a_writer_it_is_given_up() {
        let root = tempfile::tempdir().unwrap();
        let path = pipe(root.path());
        for path in [path.as_path(), root.path(), Path::new("/dev/zero")] {
            let refused = open_regular(path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
        }
        let stop = AtomicBool::new(false);
        let late = read_looking(&path, 64, &stop, 1).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut, "{late}");
        let stop = AtomicBool::new(true);
        let stopped = read_short(&path, 64, &stop).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted, "{stopped}");
    }

    #[test]
    fn a_short_text_comes_whole_from_a_pipe_and_bounded_from_what_never_ends() {
        let root = tempfile::tempdir().unwrap();
        let path = pipe(root.path());
        let stop = AtomicBool::new(false);
        let text = std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&path, "key\n"));
            read_short(&path, 64, &stop)
        });
        assert_eq!(text.unwrap(), "key\n");
        let zeros = read_short(Path::new("/dev/zero"), 64, &stop).unwrap();
        assert_eq!(zeros.len(), 64);
        let empty = root.path().join("empty");
        fs::write(&empty, "").unwrap();
        assert_eq!(read_short(&empty, 64, &stop).unwrap(), "");
    }
}
