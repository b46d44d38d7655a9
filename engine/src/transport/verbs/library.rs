//! The real verbs library, found at run time: the one place that calls it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use libloading::Library as Loaded;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::calls::{
    CallError, Completion, Depth, Device, Keys, Library, Mtu, PairKind, Port, PortState, Step,
    Write,
};
use super::gid::{Gid, GidKind, LinkLayer, is_empty};
use super::layout::{
    AhAttr, CompChannel, Context, Cq, Mr, PortAttr, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr,
    Sge, Wc, code,
};
use super::status::Status;
use crate::library::functions;
use crate::transport::mapping::Mapping;

const SONAME: &str = "libibverbs.so.1";
/// Where the kernel says what the library does not.
const SYSFS: &str = "/sys/class/infiniband";
/// Nobody home in this entry.
const ENODATA: i32 = 61;
const ENOSYS: i32 = 38;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EEXIST: i32 = 17;
const EAGAIN: i32 = 11;
/// 4.096 µs · 2^14 = 67 ms until a packet is sent again.
const ACK_TIMEOUT: u8 = 14;
/// A packet is sent again so often, for about half a second; seven is for ever on Soft-RoCE.
const RETRIES: u8 = 6;
/// A receiver without a receive is asked again for ever: credits leave it none but by a fault, which
/// the gate's deadline ends.
const NOT_READY_RETRIES: u8 = 7;
/// 0.64 ms until a sender asks a receiver again that had no receive posted.
const NOT_READY_TIMER: u8 = 12;
/// Routers on the way.
const HOPS: u8 = 64;

/// Why there is no library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// None is installed.
    NoLibrary,
    /// Something of its name lacks functions.
    WrongLibrary {
        /// Which.
        missing: Vec<&'static str>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary => write!(
                f,
                "{SONAME} cannot be loaded; install libibverbs and its providers (Debian: \
                 ibverbs-providers)"
            ),
            Self::WrongLibrary { missing } => write!(
                f,
                "{SONAME} lacks {}; update it, or take it off the library path",
                missing.join(", ")
            ),
        }
    }
}

impl std::error::Error for LoadError {}

// As the header of rdma-core v44 says; enums are integers of 32 bits.
functions! {
    get_device_list(*mut c_int) -> *mut *mut c_void = "ibv_get_device_list";
    free_device_list(*mut *mut c_void) = "ibv_free_device_list";
    get_device_name(*mut c_void) -> *const c_char = "ibv_get_device_name";
    open_device(*mut c_void) -> *mut Context = "ibv_open_device";
    close_device(*mut Context) -> c_int = "ibv_close_device";
    query_port(*mut Context, u8, *mut PortAttr) -> c_int = "ibv_query_port";
    query_gid(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int = "ibv_query_gid";
    alloc_pd(*mut Context) -> *mut c_void = "ibv_alloc_pd";
    dealloc_pd(*mut c_void) -> c_int = "ibv_dealloc_pd";
    reg_mr(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr = "ibv_reg_mr";
    dereg_mr(*mut Mr) -> c_int = "ibv_dereg_mr";
    create_channel(*mut Context) -> *mut CompChannel = "ibv_create_comp_channel";
    destroy_channel(*mut CompChannel) -> c_int = "ibv_destroy_comp_channel";
    create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq = "ibv_create_cq";
    destroy_cq(*mut Cq) -> c_int = "ibv_destroy_cq";
    get_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int = "ibv_get_cq_event";
    ack_events(*mut Cq, u32) = "ibv_ack_cq_events";
    create_qp(*mut c_void, *mut QpInitAttr) -> *mut Qp = "ibv_create_qp";
    destroy_qp(*mut Qp) -> c_int = "ibv_destroy_qp";
    modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int = "ibv_modify_qp";
}

/// The system's verbs library.
#[derive(Clone, Copy, Debug)]
pub struct SystemVerbs(&'static Functions);

impl SystemVerbs {
    /// Loads it, once for the process.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load() -> Result<Self, LoadError> {
        static LIBRARY: OnceLock<Option<Loaded>> = OnceLock::new();
        static FUNCTIONS: OnceLock<Result<Functions, Vec<&'static str>>> = OnceLock::new();
        // SAFETY: loading the library runs its initialisers, which is what the user asks for.
        let library = LIBRARY.get_or_init(|| unsafe { Loaded::new(SONAME) }.ok());
        let library = library.as_ref().ok_or(LoadError::NoLibrary)?;
        match FUNCTIONS.get_or_init(|| Functions::load(library)) {
            Ok(functions) => Ok(Self(functions)),
            Err(missing) => Err(LoadError::WrongLibrary {
                missing: missing.clone(),
            }),
        }
    }

    /// Runs `work` on the list of devices.
    fn with_list<T>(
        self,
        work: impl FnOnce(&[*mut c_void]) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut count: c_int = 0;
        // SAFETY: the place is valid.
        let list = unsafe { (self.0.get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(failed("ibv_get_device_list"));
        };
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the library says that so many devices stand there.
        let done = work(unsafe { std::slice::from_raw_parts(list.as_ptr(), count) });
        // SAFETY: it is the list that was given, and nobody looks at it any more.
        unsafe { (self.0.free_device_list)(list.as_ptr()) };
        done
    }

    fn name(self, device: *mut c_void) -> String {
        // SAFETY: the device stands in a list that was not given back.
        let name = unsafe { (self.0.get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the library gives a string that lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl Library for SystemVerbs {
    fn origin(&self) -> String {
        SONAME.to_owned()
    }

    fn devices(&self) -> Result<Vec<String>, CallError> {
        self.with_list(|list| Ok(list.iter().map(|device| self.name(*device)).collect()))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Device>, CallError> {
        self.with_list(|list| {
            let found = list.iter().find(|device| self.name(**device) == name);
            let device = *found.ok_or(CallError::new("ibv_get_device_list", ENODEV))?;
            // SAFETY: the device stands in the list.
            let context = NonNull::new(unsafe { (self.0.open_device)(device) });
            let context = context.ok_or_else(|| failed("ibv_open_device"))?;
            let opened: Box<dyn Device> = Box::new(SystemDevice {
                functions: self.0,
                name: name.to_owned(),
                context,
                domain: None,
                region: None,
                channel: None,
                queue: None,
                pair: None,
            });
            Ok(opened)
        })
    }
}

/// An opened device. The objects depend on each other from the last to the first.
#[derive(Debug)]
struct SystemDevice {
    functions: &'static Functions,
    name: String,
    context: NonNull<Context>,
    domain: Option<NonNull<c_void>>,
    region: Option<(NonNull<Mr>, Arc<Mapping>)>,
    channel: Option<NonNull<CompChannel>>,
    queue: Option<NonNull<Cq>>,
    pair: Option<(NonNull<Qp>, PairKind)>,
}

// SAFETY: verbs objects may be used from any thread, and here from one at a time.
unsafe impl Send for SystemDevice {}

impl SystemDevice {
    fn domain(&mut self) -> Result<NonNull<c_void>, CallError> {
        if let Some(domain) = self.domain {
            return Ok(domain);
        }
        // SAFETY: the device is open.
        let domain = NonNull::new(unsafe { (self.functions.alloc_pd)(self.context.as_ptr()) });
        let domain = domain.ok_or_else(|| failed("ibv_alloc_pd"))?;
        self.domain = Some(domain);
        Ok(domain)
    }

    fn attribute(&self, port: u8, what: &str, index: u32) -> Option<String> {
        let name = &self.name;
        let path = format!("{SYSFS}/{name}/ports/{port}/gid_attrs/{what}/{index}");
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn pair(&self) -> Result<(NonNull<Qp>, PairKind), CallError> {
        self.pair.ok_or(CallError::new("ibv_create_qp", EINVAL))
    }

    fn ops(&self) -> &super::layout::ContextOps {
        // SAFETY: the device is open, and nobody changes its functions.
        let context = unsafe { self.context.as_ref() };
        &context.ops
    }
}

impl Device for SystemDevice {
    fn ports(&self) -> Vec<u8> {
        let folder = fs::read_dir(format!("{SYSFS}/{}/ports", self.name));
        let names = folder.into_iter().flatten().filter_map(Result::ok);
        let mut ports: Vec<u8> = names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        ports.sort_unstable();
        ports
    }

    fn port(&self, port: u8) -> Result<Port, CallError> {
        let mut said = PortAttr::default();
        // SAFETY: the device is open and the place has the library's size.
        let status =
            unsafe { (self.functions.query_port)(self.context.as_ptr(), port, &raw mut said) };
        judged("ibv_query_port", status)?;
        let mtu = |code: u32| {
            let code = u8::try_from(code).ok().and_then(Mtu::from_code);
            code.unwrap_or(Mtu::SMALLEST)
        };
        Ok(Port {
            state: PortState::from_code(said.state),
            link: LinkLayer::from_code(said.link_layer),
            lid: said.lid,
            active_mtu: mtu(said.active_mtu),
            max_mtu: mtu(said.max_mtu),
            max_message_bytes: said.max_msg_sz,
            gids: u32::try_from(said.gid_tbl_len).unwrap_or(0),
        })
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<Gid>, CallError> {
        let mut words = [0_u64; 2];
        let place = c_int::try_from(index).map_err(|_| CallError::new("ibv_query_gid", EINVAL))?;
        // SAFETY: the device is open and the place has 16 bytes, aligned to 8.
        let status = unsafe {
            (self.functions.query_gid)(self.context.as_ptr(), port, place, &raw mut words)
        };
        match judged("ibv_query_gid", status) {
            Err(error) if error.errno == ENODATA => return Ok(None),
            other => other?,
        }
        let [high, low] = words.map(u64::to_ne_bytes);
        let mut raw = [0; 16];
        for (to, from) in raw.iter_mut().zip(high.into_iter().chain(low)) {
            *to = from;
        }
        if is_empty(raw) {
            return Ok(None);
        }
        let link = self.port(port)?.link;
        let kind = match (self.attribute(port, "types", index).as_deref(), link) {
            (_, LinkLayer::InfiniBand) => GidKind::InfiniBand,
            (Some("RoCE v2"), _) => GidKind::RoceV2,
            (Some("IB/RoCE v1"), _) => GidKind::RoceV1,
            _ => GidKind::Unknown,
        };
        Ok(Some(Gid {
            index,
            kind,
            raw,
            interface: self.attribute(port, "ndevs", index),
        }))
    }

    fn register(&mut self, memory: &Arc<Mapping>) -> Result<Keys, CallError> {
        if self.region.is_some() {
            return Err(CallError::new("ibv_reg_mr", EEXIST));
        }
        let domain = self.domain()?;
        let access = c_int::try_from(code::ACCESS).unwrap_or(0);
        let base = memory.base().cast::<c_void>();
        // SAFETY: the mapping has these bytes and lives until the registration ends, for `self`
        // holds it; it is reached by raw copies alone, so that the device may write it.
        let region =
            unsafe { (self.functions.reg_mr)(domain.as_ptr(), base, memory.bytes(), access) };
        let region = NonNull::new(region).ok_or_else(|| failed("ibv_reg_mr"))?;
        self.region = Some((region, Arc::clone(memory)));
        // SAFETY: the library made it.
        let keys = unsafe { region.as_ref() };
        Ok(Keys {
            address: u64::try_from(base.addr()).unwrap_or(0),
            remote: keys.rkey,
        })
    }

    fn create_queue(&mut self, entries: u32) -> Result<(), CallError> {
        if self.queue.is_some() {
            return Err(CallError::new("ibv_create_cq", EEXIST));
        }
        let context = self.context.as_ptr();
        let channel = match self.channel {
            Some(channel) => channel,
            None => {
                // SAFETY: the device is open.
                let made = NonNull::new(unsafe { (self.functions.create_channel)(context) });
                let made = made.ok_or_else(|| failed("ibv_create_comp_channel"))?;
                *self.channel.insert(made)
            }
        };
        let bell = self
            .bell()
            .ok_or(CallError::new("ibv_create_comp_channel", EINVAL))?;
        let calm = fcntl_getfl(bell).and_then(|flags| fcntl_setfl(bell, flags | OFlags::NONBLOCK));
        calm.map_err(|error| CallError::new("fcntl", error.raw_os_error()))?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let none = ptr::null_mut();
        // SAFETY: device and channel are live.
        let queue =
            unsafe { (self.functions.create_cq)(context, entries, none, channel.as_ptr(), 0) };
        self.queue = Some(NonNull::new(queue).ok_or_else(|| failed("ibv_create_cq"))?);
        Ok(())
    }

    fn create_pair(&mut self, kind: PairKind, depth: Depth) -> Result<u32, CallError> {
        if self.pair.is_some() {
            return Err(CallError::new("ibv_create_qp", EEXIST));
        }
        let queue = self.queue.ok_or(CallError::new("ibv_create_qp", EINVAL))?;
        let domain = self.domain()?;
        let mut wanted = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: depth.writes,
                max_recv_wr: depth.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: u32::from(kind.code()),
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are live, and the structure is the header's.
        let pair = unsafe { (self.functions.create_qp)(domain.as_ptr(), &raw mut wanted) };
        let pair = NonNull::new(pair).ok_or_else(|| failed("ibv_create_qp"))?;
        self.pair = Some((pair, kind));
        // SAFETY: the library made it.
        Ok(unsafe { pair.as_ref() }.qp_num)
    }

    fn modify(&mut self, step: &Step) -> Result<(), CallError> {
        let (pair, kind) = self.pair()?;
        let (mut wanted, mask) = attributes(step, kind);
        let mask = c_int::try_from(mask).unwrap_or(0);
        // SAFETY: the pair is live, and the structure is the header's.
        let status = unsafe { (self.functions.modify_qp)(pair.as_ptr(), &raw mut wanted, mask) };
        judged("ibv_modify_qp", status)
    }

    fn post_receive(&mut self, id: u64) -> Result<(), CallError> {
        const CALL: &str = "ibv_post_recv";
        let (pair, _) = self.pair()?;
        let post = self.ops().post_recv.ok_or(CallError::new(CALL, ENOSYS))?;
        let mut work = RecvWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is live, and the library copies the list before it returns.
        let status = unsafe { post(pair.as_ptr(), &raw mut work, &raw mut bad) };
        judged(CALL, status)
    }

    fn post_write(&mut self, write: &Write) -> Result<(), CallError> {
        const CALL: &str = "ibv_post_send";
        let (pair, _) = self.pair()?;
        let post = self.ops().post_send.ok_or(CallError::new(CALL, ENOSYS))?;
        let (region, memory) = self.region.as_ref().ok_or(CallError::new(CALL, EINVAL))?;
        let bytes = usize::try_from(write.bytes).unwrap_or(usize::MAX);
        let end = write.offset.checked_add(bytes);
        if end.is_none_or(|end| end > memory.bytes()) {
            return Err(CallError::new(CALL, EINVAL));
        }
        // SAFETY: the library made it.
        let lkey = unsafe { region.as_ref() }.lkey;
        let base = memory.base().addr();
        let mut part = Sge {
            addr: u64::try_from(base.wrapping_add(write.offset)).unwrap_or(0),
            length: write.bytes,
            lkey,
        };
        let mut work = SendWr {
            wr_id: write.id,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: c_int::from(write.bytes > 0),
            opcode: code::WRITE_WITH_IMM,
            send_flags: code::SIGNALED,
            imm_data: write.immediate.to_be(),
            remote_addr: write.address,
            rkey: write.key,
            rest: [0; 9],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is live, and the library copies the list before it returns; the bytes
        // lie in registered memory, which lives as long as the pair.
        let status = unsafe { post(pair.as_ptr(), &raw mut work, &raw mut bad) };
        judged(CALL, status)
    }

    fn poll(&mut self) -> Result<Option<Completion>, CallError> {
        const CALL: &str = "ibv_poll_cq";
        let queue = self.queue.ok_or(CallError::new(CALL, EINVAL))?;
        let poll = self.ops().poll_cq.ok_or(CallError::new(CALL, ENOSYS))?;
        let mut done = Wc::default();
        // SAFETY: the queue is live, and there is room for one.
        match unsafe { poll(queue.as_ptr(), 1, &raw mut done) } {
            0 => Ok(None),
            1.. => {
                let status = Status::from_code(done.status);
                let immediate = status == Status::Success
                    && done.opcode == code::RECV_WITH_IMM
                    && done.wc_flags & code::WITH_IMM != 0;
                Ok(Some(Completion {
                    id: done.wr_id,
                    status,
                    vendor: done.vendor_err,
                    bytes: done.byte_len,
                    immediate: immediate.then(|| u32::from_be(done.imm_data)),
                }))
            }
            _ => Err(CallError::new(CALL, 0)),
        }
    }

    fn arm(&mut self) -> Result<(), CallError> {
        const CALL: &str = "ibv_req_notify_cq";
        let queue = self.queue.ok_or(CallError::new(CALL, EINVAL))?;
        let arm = self
            .ops()
            .req_notify_cq
            .ok_or(CallError::new(CALL, ENOSYS))?;
        // SAFETY: the queue is live.
        judged(CALL, unsafe { arm(queue.as_ptr(), 0) })
    }

    fn silence(&mut self) -> Result<(), CallError> {
        const CALL: &str = "ibv_get_cq_event";
        let channel = self.channel.ok_or(CallError::new(CALL, EINVAL))?;
        loop {
            let (mut queue, mut own) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is live, and the places are valid.
            let status = unsafe {
                (self.functions.get_event)(channel.as_ptr(), &raw mut queue, &raw mut own)
            };
            match judged(CALL, status) {
                // SAFETY: the event came from this queue, which is live: it is the channel's only
                // one. What is not acknowledged would keep it from being destroyed.
                Ok(()) => unsafe { (self.functions.ack_events)(queue, 1) },
                Err(error) if error.errno == EAGAIN => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the library made the channel.
        let channel = unsafe { self.channel?.as_ref() };
        // SAFETY: the file is open as long as the channel, which lives as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(channel.fd) })
    }
}

impl Drop for SystemDevice {
    fn drop(&mut self) {
        let functions = self.functions;
        if let Some((pair, _)) = self.pair {
            // SAFETY: the pair is live and nobody uses it any more.
            let _ = unsafe { (functions.destroy_qp)(pair.as_ptr()) };
        }
        if let Some(queue) = self.queue {
            // SAFETY: as above; its pair is gone and its events are acknowledged.
            let _ = unsafe { (functions.destroy_cq)(queue.as_ptr()) };
        }
        if let Some(channel) = self.channel {
            // SAFETY: as above; its queue is gone.
            let _ = unsafe { (functions.destroy_channel)(channel.as_ptr()) };
        }
        if let Some((region, memory)) = self.region.take() {
            // SAFETY: as above.
            if unsafe { (functions.dereg_mr)(region.as_ptr()) } != 0 {
                // The device may write there still: the memory must stay.
                std::mem::forget(memory);
            }
        }
        if let Some(domain) = self.domain {
            // SAFETY: as above; what stood in it is gone.
            let _ = unsafe { (functions.dealloc_pd)(domain.as_ptr()) };
        }
        // SAFETY: as above.
        let _ = unsafe { (functions.close_device)(self.context.as_ptr()) };
    }
}

/// What a step sets, and the mask that says so.
fn attributes(step: &Step, kind: PairKind) -> (QpAttr, u32) {
    let reliable = kind == PairKind::Reliable;
    match step {
        Step::Initialize { port } => {
            let wanted = QpAttr {
                qp_state: code::INIT,
                qp_access_flags: code::ACCESS,
                port_num: *port,
                ..QpAttr::default()
            };
            let mask = code::STATE | code::PKEY_INDEX | code::PORT | code::ACCESS_FLAGS;
            (wanted, mask)
        }
        Step::Receive(route) => {
            let [high, low] = [0, 8].map(|at| {
                let mut half = [0; 8];
                for (to, from) in half.iter_mut().zip(route.gid.iter().skip(at)) {
                    *to = *from;
                }
                u64::from_ne_bytes(half)
            });
            let wanted = QpAttr {
                qp_state: code::RTR,
                path_mtu: u32::from(route.mtu.code()),
                dest_qp_num: route.number,
                rq_psn: route.psn,
                max_dest_rd_atomic: 1,
                min_rnr_timer: NOT_READY_TIMER,
                ah_attr: AhAttr {
                    dgid: [high, low],
                    sgid_index: route.gid_index,
                    hop_limit: HOPS,
                    dlid: route.lid,
                    is_global: u8::from(route.global),
                    port_num: route.port,
                    ..AhAttr::default()
                },
                ..QpAttr::default()
            };
            let mask = code::STATE | code::AV | code::PATH_MTU | code::DEST_QPN | code::RQ_PSN;
            let more = code::MAX_DEST_RD_ATOMIC | code::MIN_RNR_TIMER;
            (wanted, if reliable { mask | more } else { mask })
        }
        Step::Send { psn } => {
            let wanted = QpAttr {
                qp_state: code::RTS,
                sq_psn: *psn,
                timeout: ACK_TIMEOUT,
                retry_cnt: RETRIES,
                rnr_retry: NOT_READY_RETRIES,
                max_rd_atomic: 1,
                ..QpAttr::default()
            };
            let mask = code::STATE | code::SQ_PSN;
            let more = code::TIMEOUT | code::RETRY_CNT | code::RNR_RETRY | code::MAX_QP_RD_ATOMIC;
            (wanted, if reliable { mask | more } else { mask })
        }
    }
}

/// The error of a function that has set the system's number.
fn failed(call: &'static str) -> CallError {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    CallError::new(call, errno)
}

/// The error of a function that returns 0, the system's number, or -1 and sets it.
fn judged(call: &'static str, status: c_int) -> Result<(), CallError> {
    match status {
        0 => Ok(()),
        errno @ 1.. => Err(CallError::new(call, errno)),
        _ => Err(failed(call)),
    }
}
