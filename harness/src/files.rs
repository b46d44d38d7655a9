//! Writing files so that they are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

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
}
