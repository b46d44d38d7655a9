//! Peers with `unsafe` interfaces: rlsf, and with the feature `vma` the virtual blocks of VMA.

use std::alloc::Layout;
use std::ptr::NonNull;

use ds4_harness::bench::peers::{Contender, Peer, runner};

/// rlsf keeps its books inside the memory it hands out, so it needs that memory. At full size the
/// workloads exceed a common host: sizes and capacity are divided by this.
const RLSF_SCALE: u64 = 8;

/// The peers of this crate.
#[must_use]
pub fn more_peers() -> Vec<Contender> {
    let mut peers = vec![Contender::new(
        "rlsf (host memory, 1/8 size)",
        |bytes, slots| Ok(runner(HostTlsf::new(bytes)?, slots)),
    )];
    peers.extend(vma_peers());
    peers
}

#[cfg(not(feature = "vma"))]
fn vma_peers() -> Vec<Contender> {
    Vec::new()
}

#[cfg(feature = "vma")]
fn vma_peers() -> Vec<Contender> {
    use vk_mem::VirtualAllocationCreateFlags as Flags;
    let strategies = [
        ("vma", Flags::empty()),
        (
            "vma min-memory",
            Flags::VMA_VIRTUAL_ALLOCATION_CREATE_STRATEGY_MIN_MEMORY_BIT,
        ),
        (
            "vma min-time",
            Flags::VMA_VIRTUAL_ALLOCATION_CREATE_STRATEGY_MIN_TIME_BIT,
        ),
    ];
    let contender = |(name, flags): (&str, Flags)| {
        Contender::new(name, move |bytes, slots| {
            Ok(runner(vma::Block::new(bytes, flags)?, slots))
        })
    };
    strategies.into_iter().map(contender).collect()
}

type Tlsf = rlsf::Tlsf<'static, u32, u32, 32, 32>;

/// An alignment below the granularity of rlsf, so that it costs nothing.
const HOST_ALIGN: usize = 16;

struct HostTlsf {
    tlsf: Tlsf,
    /// The memory the blocks lie in; its buffer is never moved or touched by this vector.
    _memory: Vec<u8>,
}

impl HostTlsf {
    fn new(capacity_bytes: u64) -> Result<Self, String> {
        let bytes = usize::try_from(capacity_bytes / RLSF_SCALE)
            .map_err(|_| format!("{capacity_bytes} bytes exceed the address space"))?;
        let mut memory: Vec<u8> = Vec::new();
        memory
            .try_reserve_exact(bytes)
            .map_err(|error| format!("no host memory for {bytes} bytes: {error}"))?;
        let mut tlsf = Tlsf::new();
        let block = NonNull::slice_from_raw_parts(
            NonNull::from(memory.spare_capacity_mut()).cast::<u8>(),
            bytes,
        );
        #[expect(unsafe_code, reason = "the interface of rlsf")]
        // SAFETY: the block is the whole buffer of `memory`, which lives as long as `tlsf` and is
        // used by nothing else.
        let inserted = unsafe { tlsf.insert_free_block_ptr(block) };
        inserted.ok_or("the memory is too small")?;
        Ok(Self {
            tlsf,
            _memory: memory,
        })
    }
}

impl Peer for HostTlsf {
    type Id = NonNull<u8>;

    fn allocate(&mut self, bytes: u64) -> Option<NonNull<u8>> {
        let bytes = usize::try_from(bytes.div_ceil(RLSF_SCALE)).ok()?;
        self.tlsf
            .allocate(Layout::from_size_align(bytes, HOST_ALIGN).ok()?)
    }

    fn free(&mut self, id: NonNull<u8>) {
        #[expect(unsafe_code, reason = "the interface of rlsf")]
        // SAFETY: a slot holds what `allocate` returned, with this alignment, and is emptied
        // before its block is freed.
        unsafe {
            self.tlsf.deallocate(id, HOST_ALIGN);
        }
    }
}

#[cfg(feature = "vma")]
mod vma {
    //! Virtual blocks: VMA's bookkeeping without a device.

    use ds4_harness::bench::peers::Peer;
    use ds4_harness::bench::workload::GRAIN_BYTES;
    use vk_mem::{
        VirtualAllocation, VirtualAllocationCreateFlags, VirtualAllocationCreateInfo, VirtualBlock,
        VirtualBlockCreateInfo,
    };

    pub(super) struct Block {
        block: VirtualBlock,
        flags: VirtualAllocationCreateFlags,
    }

    impl Block {
        pub(super) fn new(bytes: u64, flags: VirtualAllocationCreateFlags) -> Result<Self, String> {
            let size = bytes / GRAIN_BYTES;
            let info = VirtualBlockCreateInfo {
                size,
                ..VirtualBlockCreateInfo::default()
            };
            let block = VirtualBlock::new(info).map_err(|code| code.to_string())?;
            Ok(Self { block, flags })
        }
    }

    impl Peer for Block {
        type Id = VirtualAllocation;

        fn allocate(&mut self, bytes: u64) -> Option<VirtualAllocation> {
            let request = VirtualAllocationCreateInfo {
                size: bytes.div_ceil(GRAIN_BYTES),
                alignment: 1,
                user_data: 0,
                flags: self.flags,
            };
            #[expect(unsafe_code, reason = "the interface of vk-mem")]
            // SAFETY: the block is valid from `new` until it is dropped.
            let got = unsafe { self.block.allocate(request) };
            got.ok().map(|(allocation, _)| allocation)
        }

        fn free(&mut self, mut id: VirtualAllocation) {
            #[expect(unsafe_code, reason = "the interface of vk-mem")]
            // SAFETY: a slot holds what this block gave out, and is emptied before it is freed.
            unsafe {
                self.block.free(&mut id);
            }
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            #[expect(unsafe_code, reason = "the interface of vk-mem")]
            // SAFETY: no allocation is used after its block is dropped.
            unsafe {
                self.block.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_harness::bench::workload::churn;
    use ds4_harness::bench::{Spec, time};
    use std::sync::Arc;

    #[test]
    fn every_peer_runs_the_churn_without_a_refusal() {
        let workload = Arc::new(churn(1, 4_000, 400));
        for peer in more_peers().into_iter().map(Arc::new) {
            let times = time(&Spec::new(&peer, &workload), 3).unwrap();
            assert_eq!(times.refused, 0, "{}", peer.name);
        }
    }
}
