//! The bytes behind a device's addresses: which are live, and what they hold.

use ds4_engine::device::DeviceId;

use super::{DeviceState, Refused};
use crate::memory::{Piece, SparseBytes};

/// Memory behind an address.
enum Place<'a> {
    Allocation(u64, &'a SparseBytes),
    Page(u64, &'a SparseBytes),
}

impl DeviceState {
    /// Checks that `reader` may touch all of `bytes` bytes from `address` on; returns the range.
    pub(crate) fn check(
        &self,
        reader: DeviceId,
        address: u64,
        bytes: u64,
    ) -> Result<(u64, u64), Refused> {
        let invalid = |at: u64| {
            Refused::Misuse(format!(
                "invalid address: {at:#x} is not in live, mapped memory"
            ))
        };
        let end = address.checked_add(bytes).ok_or_else(|| invalid(address))?;
        let mut at = address;
        while at < end {
            let (place, offset) = self.locate(at).ok_or_else(|| invalid(at))?;
            let room = match place {
                // A range that leaves its allocation is an overrun, whatever lies behind it.
                Place::Allocation(start, contents) if end - start > contents.len() => {
                    return Err(invalid(start + contents.len()));
                }
                Place::Allocation(..) => return Ok((address, end)),
                Place::Page(start, contents) => {
                    let mapping = self.mappings.get(&start);
                    if !mapping.is_some_and(|mapping| mapping.readers.contains(reader)) {
                        return Err(Refused::Misuse(format!(
                            "invalid address: the page at {start:#x} is not mapped for {reader}"
                        )));
                    }
                    contents.len() - offset
                }
            };
            at = at.saturating_add(room);
        }
        Ok((address, end))
    }

    /// The memory that holds `address`, and the place in it.
    fn locate(&self, address: u64) -> Option<(Place<'_>, u64)> {
        if let Some((start, mapping)) = self.mappings.range(..=address).next_back() {
            let contents = &self.pages.get(&mapping.page)?.contents;
            if address - start < contents.len() {
                return Some((Place::Page(*start, contents), address - start));
            }
        }
        let (start, allocation) = self.allocations.range(..=address).next_back()?;
        let offset = address - start;
        let place = Place::Allocation(*start, &allocation.contents);
        (offset < allocation.contents.len()).then_some((place, offset))
    }

    fn contents_mut(&mut self, address: u64) -> Option<(&mut SparseBytes, u64)> {
        let (place, offset) = self.locate(address)?;
        let contents = match place {
            Place::Allocation(start, _) => &mut self.allocations.get_mut(&start)?.contents,
            Place::Page(start, _) => {
                let page = self.mappings.get(&start)?.page;
                &mut self.pages.get_mut(&page)?.contents
            }
        };
        Some((contents, offset))
    }

    /// Copies out bytes of a range that was checked.
    pub(crate) fn read(&self, address: u64, data: &mut [u8]) {
        let (mut at, mut rest) = (address, data);
        while !rest.is_empty() {
            let Some((Place::Allocation(_, contents) | Place::Page(_, contents), offset)) =
                self.locate(at)
            else {
                return;
            };
            let room = usize::try_from(contents.len() - offset).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(room.min(rest.len()));
            if contents.read(offset, now).is_err() {
                return;
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Copies in bytes of a range that was checked.
    pub(crate) fn write(&mut self, address: u64, data: &[u8]) {
        let (mut at, mut rest) = (address, data);
        while !rest.is_empty() {
            let Some((contents, offset)) = self.contents_mut(at) else {
                return;
            };
            let room = usize::try_from(contents.len() - offset).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            if contents.write(offset, now).is_err() {
                return;
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Fills a range that was checked.
    pub(crate) fn fill(&mut self, address: u64, bytes: u64, value: u8) {
        let (mut at, mut rest) = (address, bytes);
        while rest > 0 {
            let Some((contents, offset)) = self.contents_mut(at) else {
                return;
            };
            let now = rest.min(contents.len() - offset);
            if contents.fill(offset, now, value).is_err() {
                return;
            }
            at += now;
            rest -= now;
        }
    }

    /// What a range that was checked holds.
    pub(crate) fn pieces(&self, address: u64, bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut at, mut rest) = (address, bytes);
        while rest > 0 {
            let Some((Place::Allocation(_, contents) | Place::Page(_, contents), offset)) =
                self.locate(at)
            else {
                break;
            };
            let now = rest.min(contents.len() - offset);
            if contents.pieces(offset, now, &mut pieces).is_err() {
                break;
            }
            at += now;
            rest -= now;
        }
        pieces
    }

    /// Writes pieces one after another into a range that was checked.
    pub(crate) fn put(&mut self, address: u64, pieces: &[Piece]) {
        let mut at = address;
        for piece in pieces {
            match piece {
                Piece::Constant(bytes, value) => {
                    self.fill(at, *bytes, *value);
                    at += bytes;
                }
                Piece::Bytes(data) => {
                    self.write(at, data);
                    at += data.len() as u64;
                }
            }
        }
    }
}
