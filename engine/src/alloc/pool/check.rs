//! Looking at a pool from outside: its invariants, its hash, its blocks.

use super::classes::{NONE, class_of};
use super::{Pool, State};
use crate::hash::StateHash;

/// A block as reports show it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Where it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub bytes: u64,
    /// What the caller asked for; 0 for free blocks.
    pub requested_bytes: u64,
    /// What it is at the moment.
    pub state: BlockState,
}

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Owned by a caller.
    Live,
    /// Given back, still in use by a stream.
    Pending,
    /// Free for any stream.
    Free,
    /// Free for the stream that gave it back.
    FreeOnStream,
}

impl Pool {
    /// The blocks in address order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockView> {
        self.in_address_order()
            .into_iter()
            .filter(|node| self.node(*node).units > 0)
            .map(|node| {
                let record = self.node(node);
                let bytes = u64::from(record.units) * super::UNIT_BYTES;
                let state = match record.state() {
                    State::Used => BlockState::Live,
                    State::Pending => BlockState::Pending,
                    State::Free | State::Vacant if record.space() == super::OPEN => {
                        BlockState::Free
                    }
                    State::Free | State::Vacant => BlockState::FreeOnStream,
                };
                let requested_bytes = match state {
                    BlockState::Live => bytes - u64::from(record.slack_bytes()),
                    BlockState::Pending | BlockState::Free | BlockState::FreeOnStream => 0,
                };
                let offset_bytes = u64::from(record.offset) * super::UNIT_BYTES;
                BlockView {
                    offset_bytes,
                    bytes,
                    requested_bytes,
                    state,
                }
            })
    }

    /// Whether `offset` lies inside a live block, in units; its start if so.
    pub(crate) fn live_block_around(&self, offset: u32) -> Option<u32> {
        self.in_address_order().into_iter().find_map(|node| {
            let record = self.node(node);
            let inside = record.offset <= offset && offset - record.offset < record.units;
            (inside && record.state() == State::Used).then_some(record.offset)
        })
    }

    fn in_address_order(&self) -> Vec<u32> {
        let mut order = Vec::new();
        let mut node = self.last;
        while node != NONE {
            order.push(node);
            node = self.node(node).prev;
        }
        order.reverse();
        order
    }

    /// Mixes in the live blocks, in address order.
    pub(crate) fn hash_into(&self, hash: &mut StateHash) {
        for node in self.in_address_order() {
            let record = self.node(node);
            if record.state() == State::Used && record.units > 0 {
                hash.word(u64::from(record.offset) << 32 | u64::from(record.units));
                hash.word(u64::from(record.space()) << 8 | u64::from(record.slack_bytes()));
            }
        }
    }

    /// Checks every invariant of the module.
    ///
    /// # Errors
    /// A sentence that says which invariant is broken and where.
    pub fn check(&self) -> Result<(), String> {
        let (free, free_pages) = self.check_neighbours()?;
        self.check_walls()?;
        if free_pages != self.free_pages {
            return Err(format!(
                "{} free pages counted, {free_pages} found",
                self.free_pages
            ));
        }
        let most = self.limit.map_or(u32::MAX, |limit| limit.pages);
        if self.occupied_pages() > most {
            return Err(format!("{} pages touched of {most}", self.occupied_pages()));
        }
        let listed = self.check_lists()?;
        if listed != free {
            return Err(format!("{free} free blocks, {listed} listed"));
        }
        Ok(())
    }

    fn check_neighbours(&self) -> Result<(usize, u32), String> {
        let (mut end, mut before, mut free, mut free_pages) = (0, NONE, 0, 0);
        for node in self.in_address_order() {
            let record = self.node(node);
            if record.offset != end || record.prev != before {
                return Err(format!(
                    "block at unit {} does not follow unit {end}",
                    record.offset
                ));
            }
            if before != NONE && self.node(before).next != node {
                return Err(format!("links around unit {end} disagree"));
            }
            match record.state() {
                State::Vacant => return Err(format!("vacant node at unit {end}")),
                State::Free => {
                    free += 1;
                    free_pages += self.inner_pages(record.offset, record.units);
                    if before != NONE && self.node(before).is_free_in(record.space()) {
                        return Err(format!("unmerged neighbours at unit {end}"));
                    }
                }
                State::Used | State::Pending => {}
            }
            end += record.units;
            before = node;
        }
        if end != self.units || before != self.last {
            return Err(format!("blocks end at unit {end} of {}", self.units));
        }
        Ok((free, free_pages))
    }

    /// Every wall is between two blocks and used, so that the blocks beside it never merge.
    fn check_walls(&self) -> Result<(), String> {
        let mut walls = self.walls.iter();
        for node in self.in_address_order() {
            let record = self.node(node);
            if record.units > 0 {
                continue;
            }
            let ends = record.prev == NONE || record.next == NONE;
            if ends || record.state() != State::Used || walls.next() != Some(&record.offset) {
                return Err(format!("a block of no units at unit {}", record.offset));
            }
        }
        match walls.next() {
            Some(wall) => Err(format!("the wall at unit {wall} is gone")),
            None => Ok(()),
        }
    }

    fn check_lists(&self) -> Result<usize, String> {
        let mut listed = 0;
        for (space, index) in self.spaces.iter().enumerate() {
            for class in index.classes() {
                let (mut node, mut before) = (index.head(class), NONE);
                while node != NONE {
                    let record = self.node(node);
                    let free_here = u32::try_from(space).is_ok_and(|s| record.is_free_in(s));
                    if !free_here || class_of(record.units) != class || record.list_prev != before {
                        return Err(format!("unit {} is in a wrong list", record.offset));
                    }
                    listed += 1;
                    before = node;
                    node = record.list_next;
                }
            }
        }
        Ok(listed)
    }
}
