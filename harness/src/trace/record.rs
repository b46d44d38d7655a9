//! Where a recorded run goes: one file in the format its name asks for, or a folder with all.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::{Staged, write_new};

use super::write::{RecordedRun, write_jsonl, write_pytorch_snapshot, write_rmm_csv};

/// Writes the run to `path` and returns the files written.
///
/// A name that ends in `.jsonl`, `.pickle` or `.csv` gives our JSONL, a PyTorch snapshot or an
/// RMM log. A folder, or a name without extension, which becomes a folder, gets `trace.jsonl`,
/// `trace.pickle` and a `trace.devN.csv` per device, named as RMM names its logs.
///
/// # Errors
/// What the file system reports, what the writers report, and `InvalidInput` for another
/// extension or for one RMM log of several devices.
pub fn write_files(run: &RecordedRun, path: &Path) -> io::Result<Vec<PathBuf>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if path.is_dir() || path.extension().is_none() {
        return write_folder(run, path);
    }
    match extension {
        Some("jsonl") => write_new(path, |out| write_jsonl(run, out))?,
        Some("pickle") => write_new(path, |out| write_pytorch_snapshot(run, out))?,
        Some("csv") => {
            let device = only_device(run)?;
            write_new(path, |out| write_rmm_csv(run, device, out))?;
        }
        _ => {
            let problem = format!(
                "{}: no format goes by this name; end it in .jsonl, .pickle or .csv, or give a \
                 folder",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
    }
    Ok(vec![path.to_owned()])
}

fn write_folder(run: &RecordedRun, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut staged = Staged::default();
    staged.folder(folder)?;
    let mut written = vec![folder.join("trace.jsonl"), folder.join("trace.pickle")];
    if let [lines, snapshot] = written.as_slice() {
        staged.write(lines, |out| write_jsonl(run, out))?;
        staged.write(snapshot, |out| write_pytorch_snapshot(run, out))?;
    }
    for (device, _) in (0_u32..).zip(&run.devices) {
        let log = folder.join(format!("trace.dev{device}.csv"));
        staged.write(&log, |out| write_rmm_csv(run, device, out))?;
        written.push(log);
    }
    staged.finish()?;
    Ok(written)
}

/// The device that every event is on; 0 if there are no events.
fn only_device(run: &RecordedRun) -> io::Result<u32> {
    let device = run.events.first().map_or(0, |event| event.device);
    if run.events.iter().all(|event| event.device == device) {
        return Ok(device);
    }
    let problem = "an RMM log covers one device and the run has several; give a folder";
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{RecordedDevice, RecordedEvent, RecordedKind, RecordedSegment};

    fn run(devices: u32) -> RecordedRun {
        let pool = RecordedDevice {
            segments: vec![RecordedSegment {
                address: 0,
                bytes: 1024,
                blocks_at_end: Vec::new(),
            }],
        };
        let event = |device| RecordedEvent {
            time_us: 0,
            device,
            kind: RecordedKind::Alloc,
            address: 0,
            bytes: 256,
            requested_bytes: 8,
            stream: 0,
        };
        RecordedRun {
            devices: (0..devices).map(|_| pool.clone()).collect(),
            events: (0..devices).map(event).collect(),
        }
    }

    #[test]
    fn folder_gets_every_format_and_a_log_per_device() {
        let folder = tempfile::tempdir().unwrap();
        let written = write_files(&run(2), &folder.path().join("new")).unwrap();
        let names: Vec<_> = written.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(
            names,
            [
                "trace.jsonl",
                "trace.pickle",
                "trace.dev0.csv",
                "trace.dev1.csv"
            ]
        );
        for path in written {
            crate::trace::read_path(&path, &crate::trace::ReadLimits::default()).unwrap();
        }
    }

    #[test]
    fn extension_decides_the_format_of_one_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.jsonl", "a.pickle", "a.csv"] {
            let path = folder.path().join(name);
            assert_eq!(write_files(&run(1), &path).unwrap(), [path]);
        }
        let several = write_files(&run(2), &folder.path().join("b.csv")).unwrap_err();
        assert!(several.to_string().contains("give a folder"), "{several}");
        let unknown = write_files(&run(1), &folder.path().join("b.txt")).unwrap_err();
        assert!(
            unknown.to_string().contains("end it in .jsonl"),
            "{unknown}"
        );
    }
}
