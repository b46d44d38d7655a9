//! A simulated device, opened.

use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ds4_engine::transport::mapping::Mapping;
use ds4_engine::transport::verbs::{
    CallError, Completion, Depth, Device, Gid, Keys, PairKind, Port, PortState, Step, Write,
};

use super::fabric::{Fabric, Pair, PairState};

const NO_MEMORY: i32 = 12;
const INVALID: i32 = 22;
const UNSUPPORTED: i32 = 95;

/// A device with the objects of one connection.
#[derive(Debug)]
pub(super) struct SimDevice {
    fabric: Fabric,
    host: usize,
    /// The own end of the bell, and the other's until a pair takes it.
    bell: Option<(UnixStream, UnixStream)>,
    region: Option<(Arc<Mapping>, Keys)>,
    pair: Option<u32>,
}

impl SimDevice {
    pub(super) const fn new(fabric: Fabric, host: usize) -> Self {
        Self {
            fabric,
            host,
            bell: None,
            region: None,
            pair: None,
        }
    }

    fn with_pair<T>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut Pair) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut state = self.fabric.lock();
        state.call(self.host, call)?;
        let pair = self.pair.and_then(|number| state.pairs.get_mut(&number));
        work(pair.ok_or(CallError::new(call, INVALID))?)
    }
}

impl Device for SimDevice {
    fn ports(&self) -> Vec<u8> {
        vec![1]
    }

    fn port(&self, port: u8) -> Result<Port, CallError> {
        const CALL: &str = "ibv_query_port";
        let mut state = self.fabric.lock();
        state.call(self.host, CALL)?;
        let host = state.plan.hosts.get(self.host).filter(|_| port == 1);
        let host = host.ok_or(CallError::new(CALL, INVALID))?;
        Ok(Port {
            state: if host.active {
                PortState::Active
            } else {
                PortState::Down
            },
            link: host.link,
            lid: host.lid,
            active_mtu: host.mtu,
            max_mtu: host.mtu,
            max_message_bytes: host.max_message_bytes,
            gids: 8,
        })
    }

    fn gid(&self, _port: u8, index: u32) -> Result<Option<Gid>, CallError> {
        let mut state = self.fabric.lock();
        state.call(self.host, "ibv_query_gid")?;
        let gids = state.plan.hosts.get(self.host).map(|host| &host.gids);
        let mut gids = gids.into_iter().flatten();
        Ok(gids.find(|gid| gid.index == index).cloned())
    }

    fn register(&mut self, memory: &Arc<Mapping>) -> Result<Keys, CallError> {
        const CALL: &str = "ibv_reg_mr";
        let mut state = self.fabric.lock();
        state.call(self.host, "ibv_alloc_pd")?;
        state.call(self.host, CALL)?;
        let limit = state
            .plan
            .hosts
            .get(self.host)
            .map_or(0, |it| it.regions_max);
        let taken = state.regions.get(self.host).copied().unwrap_or(limit);
        if taken >= limit || self.region.is_some() {
            return Err(CallError::new(CALL, NO_MEMORY));
        }
        if let Some(count) = state.regions.get_mut(self.host) {
            *count += 1;
        }
        let remote = state.new_key();
        let keys = Keys {
            address: u64::from(remote) << 32,
            remote,
        };
        self.region = Some((Arc::clone(memory), keys));
        let pair = self.pair.and_then(|number| state.pairs.get_mut(&number));
        if let Some(pair) = pair {
            pair.memory = self.region.clone();
        }
        Ok(keys)
    }

    fn create_queue(&mut self, _entries: u32) -> Result<(), CallError> {
        let mut state = self.fabric.lock();
        state.call(self.host, "ibv_create_comp_channel")?;
        state.call(self.host, "ibv_create_cq")?;
        let bell = UnixStream::pair().and_then(|(own, other)| {
            own.set_nonblocking(true)?;
            other.set_nonblocking(true)?;
            Ok((own, other))
        });
        let words = |error: std::io::Error| {
            CallError::new("ibv_create_comp_channel", error.raw_os_error().unwrap_or(0))
        };
        self.bell = Some(bell.map_err(words)?);
        Ok(())
    }

    fn create_pair(&mut self, kind: PairKind, depth: Depth) -> Result<u32, CallError> {
        const CALL: &str = "ibv_create_qp";
        let mut state = self.fabric.lock();
        state.call(self.host, CALL)?;
        let host = state.plan.hosts.get(self.host);
        let (limit, reliable) = host.map_or((0, false), |it| (it.pairs_max, it.reliable));
        if kind == PairKind::Reliable && !reliable {
            return Err(CallError::new(CALL, UNSUPPORTED));
        }
        let own = |pair: &&Pair| pair.host == self.host;
        if state.pairs.values().filter(own).count() >= limit as usize || self.pair.is_some() {
            return Err(CallError::new(CALL, NO_MEMORY));
        }
        let bell = self
            .bell
            .as_ref()
            .and_then(|(_, other)| other.try_clone().ok());
        let bell = bell.ok_or(CallError::new(CALL, INVALID))?;
        let mut pair = Pair::new(self.host, kind, depth.receives as usize, bell);
        pair.memory = self.region.clone();
        let number = state.new_number();
        state.pairs.insert(number, pair);
        self.pair = Some(number);
        Ok(number)
    }

    fn modify(&mut self, step: &Step) -> Result<(), CallError> {
        const CALL: &str = "ibv_modify_qp";
        self.with_pair(CALL, |pair| {
            pair.state = match (pair.state, step) {
                (PairState::Reset, Step::Initialize { port: 1 }) => PairState::Initialized,
                (PairState::Initialized, Step::Receive(route)) => PairState::Hears(*route),
                (PairState::Hears(route), Step::Send { psn }) => PairState::Speaks(route, *psn),
                _ => return Err(CallError::new(CALL, INVALID)),
            };
            Ok(())
        })
    }

    fn post_receive(&mut self, id: u64) -> Result<(), CallError> {
        const CALL: &str = "ibv_post_recv";
        self.with_pair(CALL, |pair| {
            if pair.state == PairState::Reset || pair.receives.len() >= pair.receives_max {
                return Err(CallError::new(CALL, NO_MEMORY));
            }
            pair.receives.push_back(id);
            Ok(())
        })
    }

    fn post_write(&mut self, write: &Write) -> Result<(), CallError> {
        const CALL: &str = "ibv_post_send";
        let mut state = self.fabric.lock();
        state.call(self.host, CALL)?;
        let number = self.pair.ok_or(CallError::new(CALL, INVALID))?;
        state.write(number, write)
    }

    fn poll(&mut self) -> Result<Option<Completion>, CallError> {
        self.with_pair("ibv_poll_cq", |pair| Ok(pair.done.pop_front()))
    }

    fn arm(&mut self) -> Result<(), CallError> {
        self.with_pair("ibv_req_notify_cq", |pair| {
            pair.armed = true;
            Ok(())
        })
    }

    fn silence(&mut self) -> Result<(), CallError> {
        const CALL: &str = "ibv_get_cq_event";
        self.fabric.lock().call(self.host, CALL)?;
        if let Some((own, _)) = &self.bell {
            let mut rings = [0; 64];
            while let Ok(1..) = (&*own).read(&mut rings) {}
        }
        Ok(())
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|(own, _)| own.as_fd())
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        if let Some(number) = self.pair {
            state.pairs.remove(&number);
        }
        if self.region.is_some()
            && let Some(count) = state.regions.get_mut(self.host)
        {
            *count -= 1;
        }
    }
}
