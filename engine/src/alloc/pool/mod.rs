//! The bookkeeping of one device's memory: blocks, splits, merges. Offsets only, no memory.
//!
//! Device memory cannot hold its own free lists, so every block has a record out of band. Free
//! blocks hang in lists by size class, found by bitmaps (two-level segregated fit); physical
//! neighbours are linked in address order, so that a freed block merges at once.
//!
//! Free blocks belong to a *space*: one space is open to every stream, the others hold what one
//! stream gave back and other streams may not touch yet. Only blocks of one space merge.
//!
//! **Invariants**, checked by [`Pool::check`]:
//! - the blocks of all regions, in address order, cover the address space without gap or overlap;
//! - no two neighbours are free in the same space;
//! - every wall stands where it was built and is nobody's, so that no block spans it;
//! - a free block is in exactly the list of its class and space;
//! - a search that finds nothing means that no free block of those spaces can hold the request
//!   within the page limit.
//!
//! Decisions use sizes, offsets and list order alone: equal calls give equal offsets everywhere.

mod check;
mod classes;
mod node;
mod search;
#[cfg(test)]
mod search_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod tests;

pub use check::{BlockState, BlockView};
use std::hint::select_unpredictable;

use classes::{Index, NONE, class_of};
use node::{Node, State};
pub(crate) use search::Fit;
pub use search::Want;

/// The unit of all sizes and offsets of a pool, in bytes.
pub const UNIT_BYTES: u64 = 256;

/// Requests below this many units count as small (1 MiB).
///
/// Small blocks sit at the high side of the hole they go into and large ones at the low side, so
/// that small blocks gather and do not pin the holes that large blocks need.
const SMALL_UNITS: u32 = 1 << 12;

/// How far from the low side of a hole a small block may sit, in units (64 MiB): the far end of
/// a large hole stays free for long-lived blocks.
const SMALL_REACH_UNITS: u32 = 1 << 18;

/// Units that stay unused at the top of the number range, so that rounding up cannot wrap.
const GUARD_UNITS: u32 = 1 << 24;

/// The largest pages and granularity that the books can count in, in bytes (4 GiB).
pub const MAX_GRANULE_BYTES: u64 = GUARD_UNITS as u64 * UNIT_BYTES;

/// The most units that one pool spans, just under 1 TiB.
pub const MAX_UNITS: u32 = u32::MAX - GUARD_UNITS;

/// The space whose blocks any stream may take.
pub(crate) const OPEN: u32 = 0;

/// How long a block is expected to live; decides the end of the pool at which it is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// Comes and goes: activations, scratch.
    #[default]
    Transient,
    /// Stays for the run: weights, caches. Placed from the top of the pool downwards.
    Long,
}

/// Names one block of a pool; every block gets a fresh one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    pub(crate) node: u32,
    pub(crate) generation: u32,
}

/// Why an id does not name a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLive {
    /// No block ever had this number.
    Unknown,
    /// The block was given back and its number is not in use again.
    AlreadyFree,
    /// The block was given back and its number now names another block.
    Reused,
}

/// Exact counts of the work done, equal on every machine for equal calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Free blocks looked at while searching.
    pub probes: u64,
    /// Blocks cut in two or three.
    pub splits: u64,
    /// Neighbours joined.
    pub merges: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: u32,
    pub(crate) units: u32,
    pub(crate) slack_bytes: u32,
    /// The number of the stream that owns it.
    pub(crate) owner: u32,
}

/// How many pages of which size the live blocks of a pool may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimit {
    /// A page is `1 << shift` units, at most [`GUARD_UNITS`].
    shift: u32,
    pages: u32,
}

impl PageLimit {
    /// At most `pages` pages of `page_bytes`; `None` unless [`is_granule`] holds for them.
    #[must_use]
    pub fn new(page_bytes: u64, pages: u32) -> Option<Self> {
        is_granule(page_bytes).then(|| Self {
            shift: (page_bytes / UNIT_BYTES).trailing_zeros(),
            pages,
        })
    }
}

/// Whether memory that comes in pieces of `bytes` can be counted: a power of two from
/// [`UNIT_BYTES`] to [`MAX_GRANULE_BYTES`].
#[must_use]
pub fn is_granule(bytes: u64) -> bool {
    bytes.is_power_of_two() && (UNIT_BYTES..=MAX_GRANULE_BYTES).contains(&bytes)
}

/// The blocks of one device.
#[derive(Clone, Debug)]
pub struct Pool {
    nodes: Vec<Node>,
    vacant: u32,
    last: u32,
    spaces: Vec<Index>,
    limit: Option<PageLimit>,
    total_pages: u32,
    /// Whole pages that lie inside one free block each.
    free_pages: u32,
    units: u32,
    /// Where regions behind a wall begin, ascending: a wall is a used block of no units.
    walls: Vec<u32>,
    /// The largest stretch that no block ever touched.
    virgin: (u32, u32),
    counters: PoolCounters,
}

impl Pool {
    /// A pool without memory, whose live blocks may touch only so many pages if `limit` is given.
    ///
    /// ```
    /// use ds4_engine::alloc::pool::{Pool, Want};
    ///
    /// let mut pool = Pool::new(None);
    /// pool.extend(1 << 20, false);
    /// let (id, offset) = pool.allocate(Want::units(4096)).expect("256 MiB are free");
    /// assert_eq!(offset, 0);
    /// pool.free(id).expect("it is live");
    /// assert!(pool.free(id).is_err());
    /// ```
    #[must_use]
    pub fn new(limit: Option<PageLimit>) -> Self {
        Self {
            nodes: Vec::new(),
            vacant: NONE,
            last: NONE,
            spaces: vec![Index::new()],
            limit,
            total_pages: 0,
            free_pages: 0,
            units: 0,
            walls: Vec::new(),
            virgin: (0, 0),
            counters: PoolCounters::default(),
        }
    }

    /// Units in all regions together.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Exact counts of the work done so far.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Pages that live or pending blocks touch.
    #[must_use]
    pub fn occupied_pages(&self) -> u32 {
        self.total_pages - self.free_pages
    }

    /// Takes a block from the open space; returns its id and where it begins, in units.
    ///
    /// `None` means that no free block can hold it within the page limit.
    #[inline]
    pub fn allocate(&mut self, want: Want) -> Option<(BlockId, u32)> {
        let fit = self.find(OPEN, want)?;
        Some((self.take(fit, 0, OPEN), fit.offset))
    }

    /// Gives a block back to the open space.
    ///
    /// # Errors
    /// [`NotLive`] for an id that names no live block; nothing has changed.
    #[inline]
    pub fn free(&mut self, id: BlockId) -> Result<(), NotLive> {
        self.live(id)?;
        self.release(id.node, OPEN);
        Ok(())
    }

    /// Adds `units` at the end; returns where they begin, or `None` past [`MAX_UNITS`].
    ///
    /// With `wall`, blocks never span the boundary between the old end and the new part.
    pub fn extend(&mut self, units: u32, wall: bool) -> Option<u32> {
        let end = self
            .units
            .checked_add(units)
            .filter(|end| *end <= MAX_UNITS && units > 0)?;
        let offset = self.units;
        if wall && self.last != NONE {
            self.append(offset, 0, State::Used);
            self.walls.push(offset);
        }
        self.units = end;
        self.total_pages = self.limit.map_or(0, |limit| end >> limit.shift);
        let node = self.append(offset, units, State::Vacant);
        if offset == self.virgin.1 && !wall {
            self.virgin.1 = end;
        } else if self.virgin.1 - self.virgin.0 < units {
            self.virgin = (offset, end);
        }
        self.insert_free(node, OPEN);
        Some(offset)
    }

    /// Changes how many pages live blocks may touch; returns the limit before.
    pub(crate) fn set_page_limit(&mut self, pages: u32) -> u32 {
        let limit = self.limit.as_mut();
        limit.map_or(pages, |limit| std::mem::replace(&mut limit.pages, pages))
    }

    /// How many regions at the end, each behind a wall, are one free block each.
    pub(crate) fn free_regions_at_end(&self) -> usize {
        let (mut count, mut node) = (0, self.last);
        while node != NONE && self.node(node).is_free_in(OPEN) {
            let wall = self.node(node).prev;
            if wall == NONE {
                return count + 1;
            }
            if self.node(wall).units > 0 {
                break;
            }
            count += 1;
            node = self.node(wall).prev;
        }
        count
    }

    /// Whether [`Pool::retract`] would take the last `units` away.
    pub(crate) fn can_retract(&self, units: u32) -> bool {
        self.last != NONE
            && units > 0
            && self.node(self.last).is_free_in(OPEN)
            && self.node(self.last).units >= units
    }

    /// Takes the last `units` away again if they are one free block's end; says whether it did.
    pub(crate) fn retract(&mut self, units: u32) -> bool {
        if !self.can_retract(units) {
            return false;
        }
        let last = self.last;
        let (offset, have, prev) = {
            let node = self.node(last);
            (node.offset, node.units, node.prev)
        };
        let rest = have - units;
        self.unlink(last);
        self.free_pages -= self.inner_pages(offset, have);
        self.units -= units;
        self.total_pages = self.limit.map_or(0, |limit| self.units >> limit.shift);
        self.virgin.1 = self.virgin.1.min(self.units);
        self.virgin.0 = self.virgin.0.min(self.virgin.1);
        if rest > 0 {
            self.node_mut(last).units = rest;
            self.link(last, OPEN);
            self.free_pages += self.inner_pages(offset, rest);
            return true;
        }
        self.last = prev;
        self.vacate(last);
        // The wall before a whole region goes with it.
        if prev != NONE {
            self.node_mut(prev).next = NONE;
            if self.node(prev).units == 0 {
                self.last = self.node(prev).prev;
                self.vacate(prev);
                self.walls.pop();
                if self.last != NONE {
                    let last = self.last;
                    self.node_mut(last).next = NONE;
                }
            }
        }
        true
    }

    /// Turns what a search found into a live block; returns its id.
    #[inline]
    pub(crate) fn take(&mut self, fit: Fit, slack_bytes: u32, owner: u32) -> BlockId {
        let hole = fit.node;
        let (start, have) = (self.node(hole).offset, self.node(hole).units);
        let (left, right) = (fit.offset - start, start + have - fit.offset - fit.units);
        self.free_pages -= fit.pages;
        let node = if left == 0 && right == 0 {
            self.unlink(hole);
            hole
        } else {
            self.split(hole, fit, left, right)
        };
        if fit.offset < self.virgin.1 && fit.offset + fit.units > self.virgin.0 {
            self.touch_virgin(fit.offset, fit.offset + fit.units);
        }
        let record = self.node_mut(node);
        record.set(State::Used, owner, slack_bytes);
        record.generation = record.generation.wrapping_add(1);
        BlockId {
            node,
            generation: record.generation,
        }
    }

    /// Cuts `hole` and returns the node of the middle part; the rest stays free in its space.
    #[inline]
    fn split(&mut self, hole: u32, fit: Fit, left: u32, right: u32) -> u32 {
        self.counters.splits += 1;
        let used = self.vacant_node();
        let record = self.node(hole);
        let (have, prev, next) = (record.units, record.prev, record.next);
        // The hole's node stays the rest, below or above; which of the two is as good as random.
        let below = left > 0;
        let before = select_unpredictable(below, hole, prev);
        let after = select_unpredictable(below, next, hole);
        let rest_units = select_unpredictable(below, left, right);
        let rest_offset = fit.offset - left + select_unpredictable(below, 0, fit.units);
        let (class, rest_class) = (class_of(have), class_of(rest_units));
        if class != rest_class {
            self.unlink_from(hole, class, fit.space);
            self.link_into(hole, rest_class, fit.space);
        }
        let record = self.node_mut(hole);
        (record.offset, record.units) = (rest_offset, rest_units);
        self.join(before, used);
        self.join(used, after);
        let record = self.node_mut(used);
        (record.offset, record.units) = (fit.offset, fit.units);
        if after == NONE {
            self.last = used;
        }
        if left > 0 && right > 0 {
            self.split_off(used, right, fit.space);
        }
        used
    }

    /// Makes the `units` behind block `used` a free block of their own.
    fn split_off(&mut self, used: u32, units: u32, space: u32) {
        let rest = self.vacant_node();
        let record = self.node(used);
        let (offset, next) = (record.offset + record.units, record.next);
        self.join(used, rest);
        self.join(rest, next);
        let record = self.node_mut(rest);
        (record.offset, record.units) = (offset, units);
        self.link(rest, space);
        if next == NONE {
            self.last = rest;
        }
    }

    /// The live block of an id.
    #[inline]
    pub(crate) fn live(&self, id: BlockId) -> Result<Block, NotLive> {
        let BlockId { node, generation } = id;
        let record = self.nodes.get(node as usize).ok_or(NotLive::Unknown)?;
        if record.generation != generation {
            // A number that was never given out cannot have been reused.
            let past = generation != 0 && generation.wrapping_sub(record.generation) > u32::MAX / 2;
            return Err(if past {
                NotLive::Reused
            } else {
                NotLive::Unknown
            });
        }
        if record.state() != State::Used {
            return Err(if generation == 0 {
                NotLive::Unknown
            } else {
                NotLive::AlreadyFree
            });
        }
        Ok(Block {
            offset: record.offset,
            units: record.units,
            slack_bytes: record.slack_bytes(),
            owner: record.space(),
        })
    }

    /// The id of the block that a node stands for.
    #[inline]
    pub(crate) fn id_of(&self, node: u32) -> BlockId {
        let generation = self
            .nodes
            .get(node as usize)
            .map_or(0, |record| record.generation);
        BlockId { node, generation }
    }

    /// Frees a block that [`Pool::live`] confirmed, or a pending one, into `space`.
    #[inline]
    pub(crate) fn release(&mut self, node: u32, space: u32) {
        self.insert_free(node, space);
    }

    /// Marks a live block as given back but not yet reusable.
    pub(crate) fn defer(&mut self, node: u32) {
        let record = self.node_mut(node);
        let space = record.space();
        record.set(State::Pending, space, 0);
    }

    /// Adds a space for free blocks that one stream may reuse; `None` when numbers run out.
    pub(crate) fn add_space(&mut self) -> Option<u32> {
        let space = u32::try_from(self.spaces.len())
            .ok()
            .filter(|n| *n < node::MAX_SPACES)?;
        self.spaces.push(Index::new());
        Some(space)
    }

    /// Whether a space holds no free block.
    pub(crate) fn space_is_empty(&self, space: u32) -> bool {
        self.spaces.get(space as usize).is_none_or(Index::is_empty)
    }

    /// Moves every free block of one space to another and merges what meets there.
    pub(crate) fn move_space(&mut self, from: u32, to: u32) {
        while let Some(class) = self.spaces[from as usize].last_class() {
            let node = self.spaces[from as usize].head(class);
            self.remove_free(node);
            self.insert_free(node, to);
        }
    }

    /// Moves what was ever used of the open space to `to`; what no block ever touched stays open.
    pub(crate) fn move_touched(&mut self, to: u32) {
        let (start, end) = self.virgin;
        self.move_space(OPEN, to);
        if start == end {
            return;
        }
        let Some(hole) = self.free_node_at(to, start) else {
            return;
        };
        let (offset, units) = (self.node(hole).offset, self.node(hole).units);
        let pages = self.inner_pages(offset, units)
            - self.inner_pages(offset, start - offset)
            - self.inner_pages(end, offset + units - end);
        let fit = Fit {
            node: hole,
            offset: start,
            units: end - start,
            pages,
            space: to,
        };
        let virgin = self.virgin;
        let id = self.take(fit, 0, to);
        // The stretch was never a caller's block: no id may ever name it.
        self.node_mut(id.node).generation = id.generation.wrapping_sub(1);
        self.insert_free(id.node, OPEN);
        self.virgin = virgin;
    }

    fn free_node_at(&self, space: u32, offset: u32) -> Option<u32> {
        let mut node = self.last;
        while node != NONE {
            let record = self.node(node);
            if record.offset <= offset && record.is_free_in(space) {
                return (offset < record.offset + record.units).then_some(node);
            }
            node = record.prev;
        }
        None
    }

    fn touch_virgin(&mut self, start: u32, end: u32) {
        let below = (self.virgin.0, start.max(self.virgin.0));
        let above = (end.min(self.virgin.1), self.virgin.1);
        self.virgin = if below.1 - below.0 > above.1 - above.0 {
            below
        } else {
            above
        };
    }

    /// Makes `node` free in `space`, merged with its neighbours there.
    #[inline]
    fn insert_free(&mut self, node: u32, space: u32) {
        let (mut offset, mut units, prev, next) = {
            let record = self.node(node);
            (record.offset, record.units, record.prev, record.next)
        };
        let mut kept = node;
        let mut pages = 0;
        // The class of the list that the kept node is in already, if it is in one.
        let mut listed = None;
        if prev != NONE && self.node(prev).is_free_in(space) {
            let (before, length) = (self.node(prev).offset, self.node(prev).units);
            pages += self.inner_pages(before, length);
            listed = Some(class_of(length));
            (offset, units) = (before, length + units);
            self.join(prev, next);
            self.vacate(node);
            kept = prev;
            self.counters.merges += 1;
        }
        if next != NONE && self.node(next).is_free_in(space) {
            let (length, after) = (self.node(next).units, self.node(next).next);
            pages += self.inner_pages(self.node(next).offset, length);
            self.unlink_from(next, class_of(length), space);
            units += length;
            self.join(kept, after);
            self.vacate(next);
            self.counters.merges += 1;
        }
        if self.node(kept).next == NONE {
            self.last = kept;
        }
        self.free_pages = self.free_pages + self.inner_pages(offset, units) - pages;
        let record = self.node_mut(kept);
        (record.offset, record.units) = (offset, units);
        let class = class_of(units);
        if listed == Some(class) {
            return;
        }
        if let Some(old) = listed {
            self.unlink_from(kept, old, space);
        }
        self.link_into(kept, class, space);
    }

    fn remove_free(&mut self, node: u32) {
        let (offset, units) = (self.node(node).offset, self.node(node).units);
        self.free_pages -= self.inner_pages(offset, units);
        self.unlink(node);
    }

    fn link(&mut self, node: u32, space: u32) {
        self.link_into(node, class_of(self.node(node).units), space);
    }

    #[inline]
    fn link_into(&mut self, node: u32, class: u32, space: u32) {
        let head = self.spaces[space as usize].head(class);
        let record = self.node_mut(node);
        record.set(State::Free, space, 0);
        record.list_prev = NONE;
        record.list_next = head;
        if head != NONE {
            self.node_mut(head).list_prev = node;
        }
        self.spaces[space as usize].set_head(class, node);
    }

    fn unlink(&mut self, node: u32) {
        let (units, space) = (self.node(node).units, self.node(node).space());
        self.unlink_from(node, class_of(units), space);
    }

    #[inline]
    fn unlink_from(&mut self, node: u32, class: u32, space: u32) {
        let record = self.node(node);
        let (before, after) = (record.list_prev, record.list_next);
        if after != NONE {
            self.node_mut(after).list_prev = before;
        }
        if before == NONE {
            self.spaces[space as usize].set_head(class, after);
        } else {
            self.node_mut(before).list_next = after;
        }
    }

    #[inline]
    fn join(&mut self, left: u32, right: u32) {
        if left != NONE {
            self.node_mut(left).next = right;
        }
        if right != NONE {
            self.node_mut(right).prev = left;
        }
    }

    #[inline]
    fn vacate(&mut self, node: u32) {
        let vacant = self.vacant;
        let record = self.node_mut(node);
        record.set(State::Vacant, 0, 0);
        record.list_next = vacant;
        self.vacant = node;
    }

    #[inline]
    fn vacant_node(&mut self) -> u32 {
        let node = self.vacant;
        if node != NONE {
            self.vacant = self.node(node).list_next;
            return node;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "fewer blocks than units, a u32"
        )]
        let node = self.nodes.len() as u32;
        self.nodes.push(Node::vacant());
        node
    }

    fn append(&mut self, offset: u32, units: u32, state: State) -> u32 {
        let node = self.vacant_node();
        let last = self.last;
        self.join(last, node);
        let record = self.node_mut(node);
        (record.offset, record.units, record.next) = (offset, units, NONE);
        if last == NONE {
            record.prev = NONE;
        }
        record.set(state, 0, 0);
        // A wall counts as used, and the id of the last block here must not name it.
        record.generation = record
            .generation
            .wrapping_add(u32::from(state == State::Used));
        self.last = node;
        node
    }

    /// Whole pages inside a stretch; 0 where pages do not count.
    #[inline]
    fn inner_pages(&self, offset: u32, units: u32) -> u32 {
        let Some(PageLimit { shift, .. }) = self.limit else {
            return 0;
        };
        let mask = (1 << shift) - 1;
        ((offset + units) >> shift).saturating_sub((offset + mask) >> shift)
    }

    #[inline]
    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    #[inline]
    fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }
}
