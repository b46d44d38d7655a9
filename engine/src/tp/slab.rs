//! The slab: where every vector, flag and batch row of a rank lies, as a pure function of the
//! geometry.
//!
//! Both layouts hold the same eight regions in the same order; offsets, sizes and the total come
//! from one pass over [`Region::ALL`], so they cannot disagree. [`SlabLayout::ds4`] packs them as
//! the reference does; [`SlabLayout::aligned`] starts every region and every vector on 256 bytes.
//!
//! A rank keeps one incoming vector for each of its peers. The vectors of one slot lie side by
//! side, in the order of the peers' ranks.

use std::fmt;

use crate::bytes::{MAX_BYTES, align_up};
use crate::hash::StateHash;

/// Gates in one layer: after the attention and after the feed-forward block.
pub const GATES_PER_LAYER: u32 = 2;
/// The most rows of a batch gate.
pub const BATCH_ROWS_MAX: u32 = 8;
/// The most ranks of a group, as many as there can be devices.
pub const RANKS_MAX: u32 = 32;
/// The alignment of [`SlabLayout::aligned`], in bytes.
pub const ALIGN_BYTES: u64 = 256;

/// The shape that decides the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlabGeometry {
    /// Layers of the model.
    pub n_layer: u32,
    /// Numbers in one hidden vector.
    pub n_embd: u32,
    /// Ranks of the group.
    pub ranks: u32,
}

impl SlabGeometry {
    /// A model's shape on two ranks.
    #[must_use]
    pub const fn new(n_layer: u32, n_embd: u32) -> Self {
        Self {
            n_layer,
            n_embd,
            ranks: 2,
        }
    }
}

/// How the regions are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutKind {
    /// Packed, byte for byte as ds4 does it.
    Ds4,
    /// Every region and every vector on 256 bytes.
    Aligned,
}

impl LayoutKind {
    /// The name by which users ask for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ds4 => "ds4",
            Self::Aligned => "aligned",
        }
    }

    /// Its number on the wire and in the hash.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ds4 => 1,
            Self::Aligned => 2,
        }
    }

    const fn align_bytes(self) -> u64 {
        match self {
            Self::Ds4 => 1,
            Self::Aligned => ALIGN_BYTES,
        }
    }
}

/// The eight regions, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Own partial results, one vector for each slot.
    Out,
    /// The peers' partial results.
    In,
    /// One u64 for each incoming vector.
    InFlags,
    /// The token under way, 16 bytes.
    Token,
    /// One u64 for each slot.
    OutFlags,
    /// One u32 for each slot, set by the device.
    GpuFlags,
    /// Own rows of a batch, eight for each layer.
    BatchOut,
    /// The peers' rows of a batch.
    BatchIn,
}

impl Region {
    /// All of them, in the order of their offsets.
    pub const ALL: [Self; 8] = [
        Self::Out,
        Self::In,
        Self::InFlags,
        Self::Token,
        Self::OutFlags,
        Self::GpuFlags,
        Self::BatchOut,
        Self::BatchIn,
    ];

    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
            Self::InFlags => "in_flags",
            Self::Token => "token",
            Self::OutFlags => "out_flags",
            Self::GpuFlags => "gpu_flags",
            Self::BatchOut => "batch_out",
            Self::BatchIn => "batch_in",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }

    /// Bytes of the region; none when they do not fit 64 bits.
    fn bytes(self, geometry: SlabGeometry, stride_bytes: u64) -> Option<u64> {
        let slots = u64::from(geometry.n_layer).checked_mul(u64::from(GATES_PER_LAYER))?;
        let rows = u64::from(geometry.n_layer).checked_mul(u64::from(BATCH_ROWS_MAX))?;
        let peers = u64::from(geometry.ranks).checked_sub(1)?;
        match self {
            Self::Out => slots.checked_mul(stride_bytes),
            Self::In => slots.checked_mul(stride_bytes)?.checked_mul(peers),
            Self::InFlags => slots.checked_mul(8)?.checked_mul(peers),
            Self::Token => Some(16),
            Self::OutFlags => slots.checked_mul(8),
            Self::GpuFlags => slots.checked_mul(4),
            Self::BatchOut => rows.checked_mul(stride_bytes),
            Self::BatchIn => rows.checked_mul(stride_bytes)?.checked_mul(peers),
        }
    }
}

/// A piece of the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Distance from the start of the slab, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Span {
    /// The first byte behind it.
    #[must_use]
    pub const fn end(self) -> u64 {
        // A span lies inside a slab of at most MAX_BYTES.
        self.offset.saturating_add(self.bytes)
    }
}

/// Why a geometry has no slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabError {
    /// There is no layer.
    NoLayer,
    /// A vector without numbers.
    NoWidth,
    /// Fewer than two ranks, or more than [`RANKS_MAX`].
    Ranks(u32),
    /// The slab would exceed [`MAX_BYTES`].
    TooLarge(SlabGeometry),
}

impl fmt::Display for SlabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayer => f.write_str("the model has no layer: at least 1 is needed"),
            Self::NoWidth => f.write_str("the hidden vector is empty: at least 1 number is needed"),
            Self::Ranks(ranks) => {
                write!(f, "{ranks} ranks: a group has from 2 to {RANKS_MAX}")
            }
            Self::TooLarge(SlabGeometry {
                n_layer,
                n_embd,
                ranks,
            }) => write!(
                f,
                "{n_layer} layers of width {n_embd} on {ranks} ranks need more than {MAX_BYTES} \
                 bytes (8 EiB - 1)"
            ),
        }
    }
}

impl std::error::Error for SlabError {}

/// Where everything lies in a rank's slab.
///
/// ```
/// use ds4_engine::tp::slab::{Region, SlabGeometry, SlabLayout};
///
/// let layout = SlabLayout::ds4(SlabGeometry::new(43, 4096))?;
/// assert_eq!(layout.slab_bytes(), 14_091_976);
/// assert_eq!(layout.region(Region::In).offset, 1_409_024);
/// # Ok::<(), ds4_engine::tp::slab::SlabError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlabLayout {
    kind: LayoutKind,
    geometry: SlabGeometry,
    vec_bytes: u64,
    stride_bytes: u64,
    regions: [Span; 8],
    slab_bytes: u64,
}

impl SlabLayout {
    /// The packed layout of the reference.
    ///
    /// # Errors
    /// [`SlabError`], by what is wrong with the geometry.
    pub fn ds4(geometry: SlabGeometry) -> Result<Self, SlabError> {
        Self::new(LayoutKind::Ds4, geometry)
    }

    /// The layout with every region and vector on 256 bytes.
    ///
    /// # Errors
    /// [`SlabError`], by what is wrong with the geometry.
    pub fn aligned(geometry: SlabGeometry) -> Result<Self, SlabError> {
        Self::new(LayoutKind::Aligned, geometry)
    }

    /// The layout of a kind.
    ///
    /// # Errors
    /// [`SlabError`], by what is wrong with the geometry.
    pub fn new(kind: LayoutKind, geometry: SlabGeometry) -> Result<Self, SlabError> {
        if geometry.n_layer == 0 {
            return Err(SlabError::NoLayer);
        }
        if geometry.n_embd == 0 {
            return Err(SlabError::NoWidth);
        }
        if !(2..=RANKS_MAX).contains(&geometry.ranks) {
            return Err(SlabError::Ranks(geometry.ranks));
        }
        Self::place(kind, geometry).ok_or(SlabError::TooLarge(geometry))
    }

    fn place(kind: LayoutKind, geometry: SlabGeometry) -> Option<Self> {
        let align = kind.align_bytes();
        let vec_bytes = u64::from(geometry.n_embd).checked_mul(4)?;
        let stride_bytes = align_up(vec_bytes, align)?;
        let mut regions = [Span {
            offset: 0,
            bytes: 0,
        }; 8];
        let mut end = 0_u64;
        for (region, span) in Region::ALL.into_iter().zip(&mut regions) {
            span.offset = align_up(end, align)?;
            span.bytes = region.bytes(geometry, stride_bytes)?;
            end = span.offset.checked_add(span.bytes)?;
        }
        let slab_bytes = align_up(end, align)?;
        (slab_bytes <= MAX_BYTES).then_some(Self {
            kind,
            geometry,
            vec_bytes,
            stride_bytes,
            regions,
            slab_bytes,
        })
    }

    /// Which layout it is.
    #[must_use]
    pub const fn kind(&self) -> LayoutKind {
        self.kind
    }

    /// The shape it was made for.
    #[must_use]
    pub const fn geometry(&self) -> SlabGeometry {
        self.geometry
    }

    /// Bytes of one vector of 32-bit floats.
    #[must_use]
    pub const fn vec_bytes(&self) -> u64 {
        self.vec_bytes
    }

    /// Bytes from the start of one vector to the start of the next.
    #[must_use]
    pub const fn stride_bytes(&self) -> u64 {
        self.stride_bytes
    }

    /// Bytes of the whole slab.
    #[must_use]
    pub const fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    /// A region's place.
    #[must_use]
    pub fn region(&self, region: Region) -> Span {
        // There is a span for each region: the index is in bounds.
        self.regions[region.index()]
    }

    /// All regions with their places, in order.
    pub fn regions(&self) -> impl Iterator<Item = (Region, Span)> + '_ {
        Region::ALL.into_iter().zip(self.regions)
    }

    /// Slots: two for each layer.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        // At most 2^33: a u32 times two.
        self.geometry.n_layer as u64 * GATES_PER_LAYER as u64
    }

    /// The rank's own vector of a slot.
    #[must_use]
    pub fn out_vector(&self, slot: u64) -> Option<Span> {
        self.part(Region::Out, slot, self.slots())
    }

    /// The vector of a slot that comes from a peer; `peer` counts the peers, see [`peer_index`].
    #[must_use]
    pub fn in_vector(&self, slot: u64, peer: u32) -> Option<Span> {
        self.part(Region::In, self.of_peer(slot, peer)?, u64::MAX)
    }

    /// A row of a layer's outgoing batch.
    #[must_use]
    pub fn batch_out_row(&self, layer: u32, row: u32) -> Option<Span> {
        self.part(Region::BatchOut, self.row(layer, row)?, u64::MAX)
    }

    /// The first rows of a layer's outgoing batch, as one piece.
    #[must_use]
    pub fn batch_out(&self, layer: u32, rows: u32) -> Option<Span> {
        self.rows(Region::BatchOut, self.row(layer, 0)?, rows)
    }

    /// A row of a layer's batch that comes from a peer.
    #[must_use]
    pub fn batch_in_row(&self, layer: u32, row: u32, peer: u32) -> Option<Span> {
        self.row(layer, row)?;
        let first = self.peer_batch(layer, peer)?;
        self.part(
            Region::BatchIn,
            first.checked_add(u64::from(row))?,
            u64::MAX,
        )
    }

    /// The first rows of a layer's batch that come from a peer, as one piece.
    #[must_use]
    pub fn batch_in(&self, layer: u32, rows: u32, peer: u32) -> Option<Span> {
        self.row(layer, 0)?;
        self.rows(Region::BatchIn, self.peer_batch(layer, peer)?, rows)
    }

    /// A hash of everything that the two sides must agree on; both send it in the hello.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = StateHash::default();
        hash.word(u64::from(self.kind.code()))
            .word(u64::from(self.geometry.n_layer))
            .word(u64::from(self.geometry.n_embd))
            .word(u64::from(self.geometry.ranks))
            .word(u64::from(GATES_PER_LAYER))
            .word(u64::from(BATCH_ROWS_MAX))
            .word(self.vec_bytes)
            .word(self.stride_bytes);
        for span in self.regions {
            hash.word(span.offset).word(span.bytes);
        }
        hash.word(self.slab_bytes);
        hash.finish()
    }

    fn peers(&self) -> u64 {
        u64::from(self.geometry.ranks).saturating_sub(1)
    }

    fn of_peer(&self, slot: u64, peer: u32) -> Option<u64> {
        if slot >= self.slots() || u64::from(peer) >= self.peers() {
            return None;
        }
        slot.checked_mul(self.peers())?.checked_add(u64::from(peer))
    }

    fn row(&self, layer: u32, row: u32) -> Option<u64> {
        if layer >= self.geometry.n_layer || row >= BATCH_ROWS_MAX {
            return None;
        }
        u64::from(layer)
            .checked_mul(u64::from(BATCH_ROWS_MAX))?
            .checked_add(u64::from(row))
    }

    /// The number of a peer's first row of a layer among all incoming rows.
    fn peer_batch(&self, layer: u32, peer: u32) -> Option<u64> {
        if u64::from(peer) >= self.peers() {
            return None;
        }
        u64::from(layer)
            .checked_mul(self.peers())?
            .checked_add(u64::from(peer))?
            .checked_mul(u64::from(BATCH_ROWS_MAX))
    }

    fn rows(&self, region: Region, first: u64, rows: u32) -> Option<Span> {
        if !(1..=BATCH_ROWS_MAX).contains(&rows) {
            return None;
        }
        let start = self.part(region, first, u64::MAX)?;
        let before_last = u64::from(rows).checked_sub(1)?;
        let bytes = before_last
            .checked_mul(self.stride_bytes)?
            .checked_add(self.vec_bytes)?;
        Some(Span { bytes, ..start })
    }

    fn part(&self, region: Region, index: u64, count: u64) -> Option<Span> {
        if index >= count {
            return None;
        }
        let whole = self.region(region);
        let offset = whole
            .offset
            .checked_add(index.checked_mul(self.stride_bytes)?)?;
        let span = Span {
            offset,
            bytes: self.vec_bytes,
        };
        (span.offset.checked_add(span.bytes)? <= whole.end()).then_some(span)
    }
}

/// The place of rank `peer` among the peers of rank `own`: they are counted in the order of
/// their ranks, the own one left out.
#[must_use]
pub const fn peer_index(own: u32, peer: u32) -> Option<u32> {
    if peer == own {
        None
    } else if peer < own {
        Some(peer)
    } else {
        peer.checked_sub(1)
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;
