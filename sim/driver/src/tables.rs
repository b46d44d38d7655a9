//! What the caller holds: handles and addresses, and what they stand for.

use std::collections::BTreeMap;

use ds4_engine::backend::{EventId, PageId};
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};

use crate::status::Status;

/// A context, stream, event, module, function or physical memory, as the caller knows it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle(pub(crate) u64);

impl Handle {
    pub(crate) const NULL: Self = Self(0);

    #[cfg(feature = "cuda")]
    pub(crate) fn is_null(self) -> bool {
        self == Self::NULL
    }
}

/// A context: one device's resources that live and die together.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: DeviceId,
    /// The device's own one, which outlives its last release.
    pub(crate) primary: bool,
    pub(crate) references: u32,
    pub(crate) flags: u32,
    /// The devices whose memory its kernels may touch.
    pub(crate) peers: DeviceMask,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) context: Handle,
    pub(crate) bytes: u64,
}

/// Physical memory, in pages of the device.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: DeviceId,
    pub(crate) pages: Vec<PageId>,
    pub(crate) references: u32,
    pub(crate) mapped: bool,
}

#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) physical: Handle,
    pub(crate) readers: DeviceMask,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) device: DeviceId,
    pub(crate) id: StreamId,
    /// Whether it keeps order with the default stream by itself.
    pub(crate) blocking: bool,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) device: DeviceId,
    pub(crate) timed: bool,
    pub(crate) recorded: Option<EventId>,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Handle,
    pub(crate) entries: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) context: Handle,
    pub(crate) entry: String,
}

/// All of it, in the order of handles and addresses.
#[derive(Debug)]
pub(crate) struct Tables {
    next_handle: u64,
    pub(crate) contexts: BTreeMap<Handle, Context>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Host memory that the driver gave, by address, in bytes.
    pub(crate) pinned: BTreeMap<u64, usize>,
    /// Host memory of the caller's that it registered, by address, in bytes.
    pub(crate) registered: BTreeMap<u64, usize>,
    pub(crate) physical: BTreeMap<Handle, Physical>,
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) streams: BTreeMap<Handle, Stream>,
    pub(crate) events: BTreeMap<Handle, Event>,
    pub(crate) modules: BTreeMap<Handle, Module>,
    pub(crate) functions: BTreeMap<Handle, Function>,
}

impl Tables {
    /// Nothing but a primary context for each device, which nobody holds.
    pub(crate) fn new(devices: usize) -> Self {
        let mut tables = Self {
            // The low numbers stand for the default streams.
            next_handle: 0x1000,
            contexts: BTreeMap::new(),
            allocations: BTreeMap::new(),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            physical: BTreeMap::new(),
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        for device in (0..devices).filter_map(DeviceId::new) {
            let handle = tables.handle();
            tables.contexts.insert(handle, Context::new(device, true));
        }
        tables
    }

    /// A handle that was never given before.
    pub(crate) fn handle(&mut self) -> Handle {
        self.next_handle += 0x10;
        Handle(self.next_handle)
    }

    /// The primary context of a device.
    pub(crate) fn primary(&self, device: DeviceId) -> Result<Handle, Status> {
        let mut contexts = self.contexts.iter();
        let found = contexts.find(|(_, context)| context.primary && context.device == device);
        found
            .map(|(handle, _)| *handle)
            .ok_or(Status::INVALID_DEVICE)
    }

    /// A context that somebody holds.
    #[cfg(feature = "cuda")]
    pub(crate) fn context(&self, handle: Handle) -> Result<&Context, Status> {
        let context = self.contexts.get(&handle).ok_or(Status::INVALID_CONTEXT)?;
        if context.references == 0 {
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        Ok(context)
    }

    /// The allocation or mapping that holds an address: its start and length in bytes.
    pub(crate) fn memory_at(&self, address: u64) -> Option<(u64, u64)> {
        let before =
            |found: Option<(u64, u64)>| found.filter(|(start, bytes)| address - start < *bytes);
        let allocation = self.allocations.range(..=address).next_back();
        let mapping = self.mappings.range(..=address).next_back();
        before(allocation.map(|(start, allocation)| (*start, allocation.bytes)))
            .or_else(|| before(mapping.map(|(start, mapping)| (*start, mapping.bytes))))
    }
}

impl Context {
    pub(crate) fn new(device: DeviceId, primary: bool) -> Self {
        Self {
            device,
            primary,
            references: u32::from(!primary),
            flags: 0,
            peers: DeviceMask::EMPTY,
        }
    }
}
