//! The record of one block: 32 bytes, kept apart from the memory that it describes.

use super::classes::NONE;

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No block: the node waits for reuse.
    Vacant,
    /// A free block, in a list of its space.
    Free,
    /// A block that a caller owns.
    Used,
    /// A block given back that other streams may still be using.
    Pending,
}

/// One block, linked to its physical neighbours and, when free, into a list of its class.
#[derive(Clone, Debug)]
#[repr(align(32))]
pub(super) struct Node {
    /// Where the block begins, in units.
    pub(super) offset: u32,
    /// How long the block is, in units; 0 only for the wall between two regions.
    pub(super) units: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) list_prev: u32,
    pub(super) list_next: u32,
    /// Counts the blocks that this node has stood for, so that an old handle is recognised.
    pub(super) generation: u32,
    /// State, space and slack, packed so that two nodes share a cache line.
    meta: u32,
}

const STATE_BITS: u32 = 2;
const SPACE_BITS: u32 = 14;
const SPACE_MASK: u32 = (1 << SPACE_BITS) - 1;

/// The number of spaces that a node can name.
pub(super) const MAX_SPACES: u32 = SPACE_MASK;

impl Node {
    pub(super) fn vacant() -> Self {
        Self {
            offset: 0,
            units: 0,
            prev: NONE,
            next: NONE,
            list_prev: NONE,
            list_next: NONE,
            generation: 0,
            meta: 0,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        match self.meta & 0b11 {
            0 => State::Vacant,
            1 => State::Free,
            2 => State::Used,
            _ => State::Pending,
        }
    }

    #[inline]
    pub(super) fn is_free_in(&self, space: u32) -> bool {
        self.meta & (SPACE_MASK << STATE_BITS | 0b11) == (space << STATE_BITS | 1)
    }

    #[inline]
    pub(super) fn space(&self) -> u32 {
        (self.meta >> STATE_BITS) & SPACE_MASK
    }

    /// The bytes of the last unit that the caller did not ask for.
    #[inline]
    pub(super) fn slack_bytes(&self) -> u32 {
        self.meta >> (STATE_BITS + SPACE_BITS)
    }

    #[inline]
    pub(super) fn set(&mut self, state: State, space: u32, slack_bytes: u32) {
        let bits = match state {
            State::Vacant => 0,
            State::Free => 1,
            State::Used => 2,
            State::Pending => 3,
        };
        self.meta =
            slack_bytes << (STATE_BITS + SPACE_BITS) | (space & SPACE_MASK) << STATE_BITS | bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_half_a_cache_line() {
        assert_eq!(size_of::<Node>(), 32);
    }

    #[test]
    fn state_space_and_slack_do_not_disturb_each_other() {
        let mut node = Node::vacant();
        for state in [State::Vacant, State::Free, State::Used, State::Pending] {
            for space in [0, 1, MAX_SPACES - 1] {
                for slack in [0, 255] {
                    node.set(state, space, slack);
                    assert_eq!(
                        (node.state(), node.space(), node.slack_bytes()),
                        (state, space, slack)
                    );
                    assert_eq!(node.is_free_in(space), state == State::Free);
                }
            }
        }
    }
}
