//! Gates through memory that the peer's network device writes: InfiniBand, RoCE, Soft-RoCE.
//!
//! [`survey`] looks at what there is and [`rank_gids`] orders a port's addresses; `meet` connects
//! queue pairs with a peer over the data connection; [`VerbsPath`] carries bytes. All of it speaks
//! to the two traits of `calls`, behind which stand the system's library (`library`, found at run
//! time, the only place with `unsafe`) and a simulated one.
//!
//! Reliable connections (RC) are the rule. Unreliable ones (UC) are made where no reliable ones can
//! be; there lost chunks are sent again. Host memory only: [`Endpoint`] says where memory of a
//! device would be registered.

mod calls;
mod endpoint;
mod gid;
mod layout;
#[expect(unsafe_code, reason = "the verbs library is a C library")]
mod library;
mod meet;
mod path;
mod status;
mod survey;

pub use calls::{
    CallError, Completion, Depth, Device, Keys, Library, Mtu, PairKind, Port, PortState, Route,
    Step, Write,
};
pub use endpoint::{EndError, Endpoint};
pub use gid::{Choice, Gid, GidKind, GidTable, LinkLayer, Scope, rank_gids};
pub use library::{LoadError, SystemVerbs};
pub(super) use meet::Side;
pub use meet::{Rdma, connect_pair, no_devices};
pub use path::VerbsPath;
pub use status::Status;
pub use survey::{DeviceReport, NoPort, PortReport, Taken, Wish, survey, take};
