//! How a posted piece of work ended: every status by its name, its meaning and what to look at.

use std::fmt;

macro_rules! statuses {
    ($($name:ident = $code:literal, $symbol:literal, $text:literal;)*) => {
        /// `enum ibv_wc_status` of rdma-core v44, `libibverbs/verbs.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Status {
            $(#[doc = $text] $name,)*
            /// A number that rdma-core v44 does not know.
            Unknown(u32),
        }

        impl Status {
            /// Every status that has a name.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The status of a number.
            #[must_use]
            pub const fn from_code(code: u32) -> Self {
                match code { $($code => Self::$name,)* other => Self::Unknown(other) }
            }

            /// Its number.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self { $(Self::$name => $code,)* Self::Unknown(code) => code }
            }

            const fn symbol(self) -> &'static str {
                match self { $(Self::$name => $symbol,)* Self::Unknown(_) => "no name" }
            }

            const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown(_) => "a status that this version does not know",
                }
            }
        }
    };
}

statuses! {
    Success = 0, "IBV_WC_SUCCESS", "it went well";
    LocalLength = 1, "IBV_WC_LOC_LEN_ERR", "a message is longer than its receiver or this port allows";
    LocalQueuePair = 2, "IBV_WC_LOC_QP_OP_ERR", "this side's queue pair is in a bad state, as when the peer's write did not fit";
    LocalEeContext = 3, "IBV_WC_LOC_EEC_OP_ERR", "this side's end-to-end context is in a bad state";
    LocalProtection = 4, "IBV_WC_LOC_PROT_ERR", "this side's buffer is not registered for what was asked";
    Flushed = 5, "IBV_WC_WR_FLUSH_ERR", "the queue pair was in error before this piece of work began";
    MemoryWindow = 6, "IBV_WC_MW_BIND_ERR", "a memory window could not be bound";
    BadResponse = 7, "IBV_WC_BAD_RESP_ERR", "the peer's answer made no sense";
    LocalAccess = 8, "IBV_WC_LOC_ACCESS_ERR", "the peer's write was not allowed in this side's buffer";
    RemoteInvalidRequest = 9, "IBV_WC_REM_INV_REQ_ERR", "the peer refused the message: too long, or not allowed on its queue pair";
    RemoteAccess = 10, "IBV_WC_REM_ACCESS_ERR", "the peer's buffer does not allow the write: another key or address";
    RemoteOperation = 11, "IBV_WC_REM_OP_ERR", "the peer could not complete the message";
    RetriesExceeded = 12, "IBV_WC_RETRY_EXC_ERR", "the peer's port did not answer: it is gone, or these addresses do not reach it (another --rdma-gid-index, the switch, the path's MTU)";
    NotReadyExceeded = 13, "IBV_WC_RNR_RETRY_EXC_ERR", "the peer had no receive posted for too long";
    LocalRdDomain = 14, "IBV_WC_LOC_RDD_VIOL_ERR", "this side's reliable-datagram domain does not fit";
    RemoteInvalidRead = 15, "IBV_WC_REM_INV_RD_REQ_ERR", "the peer refused a read";
    RemoteAborted = 16, "IBV_WC_REM_ABORT_ERR", "the peer aborted the message";
    InvalidEeContextNumber = 17, "IBV_WC_INV_EECN_ERR", "an end-to-end context has a bad number";
    InvalidEeContextState = 18, "IBV_WC_INV_EEC_STATE_ERR", "an end-to-end context has a bad state";
    Fatal = 19, "IBV_WC_FATAL_ERR", "the device has failed";
    ResponseTimeout = 20, "IBV_WC_RESP_TIMEOUT_ERR", "an answer did not come in time";
    General = 21, "IBV_WC_GENERAL_ERR", "the transport failed in another way";
    TagMatching = 22, "IBV_WC_TM_ERR", "tag matching failed";
    TagRendezvous = 23, "IBV_WC_TM_RNDV_INCOMPLETE", "a rendezvous of tag matching is incomplete";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, status {})",
            self.text(),
            self.symbol(),
            self.code()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_name_and_unknown_ones_keep_theirs() {
        for (code, status) in (0..).zip(Status::ALL) {
            assert_eq!(status.code(), code);
            assert_eq!(Status::from_code(code), *status);
        }
        assert_eq!(Status::ALL.len(), 24);
        assert_eq!(Status::from_code(99), Status::Unknown(99));
        let text = Status::RetriesExceeded.to_string();
        assert!(text.contains("IBV_WC_RETRY_EXC_ERR, status 12"), "{text}");
    }
}
