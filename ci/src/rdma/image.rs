//! Archives as the kernel unpacks them into memory: cpio, "newc".

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Where programs look for libraries.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// An archive in the making; the kernel takes several, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Image {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Image {
    /// A folder, and those above it.
    pub(super) fn folder(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(name, 0o040_755, &[]);
    }

    /// A file.
    pub(super) fn file(&mut self, name: &str, runs: bool, bytes: Vec<u8>) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(name, if runs { 0o100_755 } else { 0o100_644 }, &bytes);
    }

    /// A link to a name.
    pub(super) fn link(&mut self, name: &str, to: &str) {
        self.entry(name, 0o120_777, to.as_bytes());
    }

    /// A library of this machine; the loader has a place of its own.
    pub(super) fn library(&mut self, file: &Path) -> io::Result<()> {
        let name = file.file_name().map(|it| it.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let place = if name.starts_with("ld-linux") {
            "lib64"
        } else {
            LIBRARIES
        };
        self.file(&format!("{place}/{name}"), true, std::fs::read(file)?);
        Ok(())
    }

    /// The archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        // Archives behind it begin at a multiple of 4; the kernel skips zeros.
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let number = self.names.len();
        let fields = [
            number,
            usize::try_from(mode).unwrap_or(0),
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        ];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08x}"));
        }
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_name_once_with_its_folders_and_a_trailer() {
        let mut image = Image::default();
        image.file("a/b", true, b"hello".to_vec());
        image.file("a/b", true, b"again".to_vec());
        image.link("lib", "usr/lib");
        let bytes = image.finish();
        assert_eq!(bytes.len() % 512, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        assert!(
            text.contains("a/b\0hello\0\0\0") || text.contains("hello"),
            "{text}"
        );
        assert!(!text.contains("again") && text.contains("TRAILER!!!"));
    }
}
