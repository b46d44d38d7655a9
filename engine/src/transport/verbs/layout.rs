//! The structures of libibverbs, as far as ds4 reads or writes them.
//!
//! Source: `libibverbs/verbs.h` of rdma-core v44 (Debian's libibverbs-dev 44.0-2) on a 64-bit
//! system; the sizes and offsets asserted below were printed by a C program over that header. The
//! library keeps them for good under the soname `libibverbs.so.1`.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

/// `struct ibv_context`; what follows belongs to the library.
#[repr(C)]
pub(super) struct Context {
    device: *mut c_void,
    pub(super) ops: ContextOps,
    cmd_fd: c_int,
}

/// `struct ibv_context_ops`: 32 functions, of which the header's inline functions call these.
#[repr(C)]
pub(super) struct ContextOps {
    before: [usize; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    between: [usize; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after: [usize; 5],
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
    refcnt: c_int,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub(super) struct Cq {
    context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut c_void,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network order.
    pub(super) imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    pub(super) wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, its unions as an RDMA write uses them.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: c_uint,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr` with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Default)]
pub(super) struct AhAttr {
    /// The union's alignment is 8.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `enum ibv_wr_opcode` and its kin.
pub(super) mod code {
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`.
    pub(in super::super) const WRITE_WITH_IMM: u32 = 1;
    /// `IBV_SEND_SIGNALED`.
    pub(in super::super) const SIGNALED: u32 = 2;
    /// `IBV_WC_WITH_IMM`.
    pub(in super::super) const WITH_IMM: u32 = 2;
    /// `IBV_WC_RECV_RDMA_WITH_IMM`.
    pub(in super::super) const RECV_WITH_IMM: u32 = 129;
    /// `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE`.
    pub(in super::super) const ACCESS: u32 = 1 | 2;
    /// `IBV_QPS_INIT`, `_RTR`, `_RTS`.
    pub(in super::super) const INIT: u32 = 1;
    pub(in super::super) const RTR: u32 = 2;
    pub(in super::super) const RTS: u32 = 3;
    /// `enum ibv_qp_attr_mask`.
    pub(in super::super) const STATE: u32 = 1;
    pub(in super::super) const ACCESS_FLAGS: u32 = 8;
    pub(in super::super) const PKEY_INDEX: u32 = 16;
    pub(in super::super) const PORT: u32 = 32;
    pub(in super::super) const AV: u32 = 128;
    pub(in super::super) const PATH_MTU: u32 = 256;
    pub(in super::super) const TIMEOUT: u32 = 512;
    pub(in super::super) const RETRY_CNT: u32 = 1024;
    pub(in super::super) const RNR_RETRY: u32 = 2048;
    pub(in super::super) const RQ_PSN: u32 = 4096;
    pub(in super::super) const MAX_QP_RD_ATOMIC: u32 = 8192;
    pub(in super::super) const MIN_RNR_TIMER: u32 = 32_768;
    pub(in super::super) const SQ_PSN: u32 = 65_536;
    pub(in super::super) const MAX_DEST_RD_ATOMIC: u32 = 131_072;
    pub(in super::super) const DEST_QPN: u32 = 1_048_576;
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(Context, ops) == 8 && offset_of!(Context, cmd_fd) == 264);
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(ContextOps, post_recv) == 208);
    assert!(size_of::<CompChannel>() == 16 && offset_of!(CompChannel, fd) == 8);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<Mr>() == 48);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, status) == 8);
    assert!(offset_of!(Wc, byte_len) == 20 && offset_of!(Wc, imm_data) == 24);
    assert!(offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, imm_data) == 36 && offset_of!(SendWr, remote_addr) == 40);
    assert!(offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<RecvWr>() == 32 && offset_of!(RecvWr, num_sge) == 24);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, cap) == 32);
    assert!(offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, sgid_index) == 20);
    assert!(offset_of!(AhAttr, hop_limit) == 21 && offset_of!(AhAttr, dlid) == 24);
    assert!(offset_of!(AhAttr, is_global) == 29 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, path_mtu) == 8);
    assert!(offset_of!(QpAttr, rq_psn) == 20 && offset_of!(QpAttr, dest_qp_num) == 28);
    assert!(offset_of!(QpAttr, qp_access_flags) == 32 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, max_rd_atomic) == 126 && offset_of!(QpAttr, port_num) == 129);
    assert!(offset_of!(QpAttr, timeout) == 130 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, max_msg_sz) == 20);
    assert!(offset_of!(PortAttr, lid) == 34 && offset_of!(PortAttr, link_layer) == 46);
};
