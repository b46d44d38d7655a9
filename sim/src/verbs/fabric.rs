//! What joins the devices: who reaches whom, and what becomes of a write.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ds4_engine::transport::mapping::Mapping;
use ds4_engine::transport::verbs::{
    CallError, Completion, Device, Keys, Library, PairKind, Route, Status, Write,
};

use super::device::SimDevice;
use super::plan::{VerbsFault, VerbsPlan};
use crate::link::Draw;

/// How far a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    Reset,
    Initialized,
    Hears(Route),
    Speaks(Route, u32),
    Error,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) host: usize,
    pub(super) kind: PairKind,
    pub(super) state: PairState,
    pub(super) memory: Option<(Arc<Mapping>, Keys)>,
    pub(super) receives: VecDeque<u64>,
    pub(super) receives_max: usize,
    pub(super) done: VecDeque<Completion>,
    pub(super) armed: bool,
    pub(super) bell: UnixStream,
    /// An unreliable message that the next one passes.
    late: Option<(Vec<u8>, Write)>,
}

/// Everything that the hosts share.
#[derive(Debug)]
pub(super) struct State {
    pub(super) plan: VerbsPlan,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) regions: Vec<u32>,
    draw: Draw,
    next_number: u32,
    next_key: u32,
    calls: BTreeMap<(usize, &'static str), u64>,
    writes: Vec<u64>,
    receives: Vec<u64>,
    lost: u64,
}

/// A network of simulated devices.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fabric")
    }
}

/// The library as one host sees it.
#[derive(Clone, Debug)]
struct HostLibrary {
    fabric: Fabric,
    host: usize,
}

impl Fabric {
    /// A network that does what a plan says.
    #[must_use]
    pub fn new(plan: VerbsPlan) -> Self {
        let hosts = plan.hosts.len();
        Self(Arc::new(Mutex::new(State {
            draw: Draw::new(plan.seed),
            pairs: BTreeMap::new(),
            regions: vec![0; hosts],
            next_number: 0x11,
            next_key: 0x100,
            calls: BTreeMap::new(),
            writes: vec![0; hosts],
            receives: vec![0; hosts],
            lost: 0,
            plan,
        })))
    }

    /// The library of a host.
    #[must_use]
    pub fn library(&self, host: usize) -> Arc<dyn Library> {
        Arc::new(HostLibrary {
            fabric: self.clone(),
            host,
        })
    }

    /// How often a host called a function.
    #[must_use]
    pub fn calls(&self, host: usize, call: &'static str) -> u64 {
        let state = self.lock();
        state.calls.get(&(host, call)).copied().unwrap_or(0)
    }

    /// Messages that were lost or overtaken.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Objects that are alive: queue pairs and registrations.
    #[must_use]
    pub fn alive(&self) -> (usize, u32) {
        let state = self.lock();
        (state.pairs.len(), state.regions.iter().sum())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Library for HostLibrary {
    fn origin(&self) -> String {
        "simulated verbs".to_owned()
    }

    fn devices(&self) -> Result<Vec<String>, CallError> {
        let mut state = self.fabric.lock();
        state.call(self.host, "ibv_get_device_list")?;
        let host = state.plan.hosts.get(self.host);
        Ok(host.map(|host| host.device.clone()).into_iter().collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Device>, CallError> {
        let mut state = self.fabric.lock();
        state.call(self.host, "ibv_open_device")?;
        let host = state.plan.hosts.get(self.host);
        if host.is_none_or(|host| host.device != name) {
            return Err(CallError::new("ibv_open_device", 19));
        }
        Ok(Box::new(SimDevice::new(self.fabric.clone(), self.host)))
    }
}

impl State {
    /// Counts a call, and fails it if the plan says so.
    pub(super) fn call(&mut self, host: usize, call: &'static str) -> Result<(), CallError> {
        let count = self.calls.entry((host, call)).or_default();
        let number = *count;
        *count += 1;
        let struck = VerbsFault::Call {
            host,
            call,
            nth: number,
        };
        let struck = self.plan.faults.contains(&struck);
        // Some calls give a number, some leave it at 0.
        let errno = if number.is_multiple_of(2) { 12 } else { 0 };
        if struck {
            Err(CallError::new(call, errno))
        } else {
            Ok(())
        }
    }

    pub(super) fn new_number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn new_key(&mut self) -> u32 {
        self.next_key += 0x10;
        self.next_key
    }

    /// A write begins, and with it everything that follows.
    pub(super) fn write(&mut self, number: u32, write: &Write) -> Result<(), CallError> {
        let bad = CallError::new("ibv_post_send", 22);
        let pair = self.pairs.get(&number).ok_or(bad.clone())?;
        let (host, kind) = (pair.host, pair.kind);
        let PairState::Speaks(route, psn) = pair.state else {
            if pair.state == PairState::Error {
                self.finish(number, flushed(write.id));
                return Ok(());
            }
            return Err(bad);
        };
        let limit = self
            .plan
            .hosts
            .get(host)
            .map_or(0, |it| it.max_message_bytes);
        let mut bytes = vec![0; write.bytes as usize];
        let (memory, _) = pair.memory.as_ref().ok_or(bad.clone())?;
        if !memory.read(write.offset, &mut bytes) {
            return Err(bad);
        }
        let nth = self.writes.get(host).copied().unwrap_or(0);
        if let Some(count) = self.writes.get_mut(host) {
            *count += 1;
        }
        let injected = self
            .plan
            .faults
            .iter()
            .find_map(|fault| fault.of_write(host, nth));
        if let Some(status) = injected.filter(|it| *it != Status::Success) {
            self.break_pair(number, write.id, status);
            return Ok(());
        }
        if write.bytes > limit {
            self.break_pair(number, write.id, Status::LocalLength);
            return Ok(());
        }
        if kind == PairKind::Unreliable {
            self.write_unreliable(number, route, psn, bytes, write);
            return Ok(());
        }
        match self.deliver(number, route, psn, &bytes, write) {
            Ok(()) => self.finish(number, sent(write)),
            Err(status) => self.break_pair(number, write.id, status),
        }
        Ok(())
    }

    fn write_unreliable(
        &mut self,
        number: u32,
        route: Route,
        psn: u32,
        bytes: Vec<u8>,
        write: &Write,
    ) {
        // It went well as soon as it is on its way.
        self.finish(number, sent(write));
        let chance = self.draw.below(1000);
        let held = self
            .pairs
            .get_mut(&number)
            .and_then(|pair| pair.late.take());
        if chance < self.plan.lost_per_mille {
            self.lost += 1;
        } else if chance < self.plan.lost_per_mille + self.plan.late_per_mille && held.is_none() {
            self.lost += 1;
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.late = Some((bytes, *write));
            }
            return;
        } else {
            // What does not arrive is nobody's business.
            let _ = self.deliver(number, route, psn, &bytes, write);
        }
        if let Some((bytes, write)) = held {
            let _ = self.deliver(number, route, psn, &bytes, &write);
        }
    }

    /// Puts bytes into the peer's memory and its number into the peer's queue.
    fn deliver(
        &mut self,
        from: u32,
        route: Route,
        psn: u32,
        bytes: &[u8],
        write: &Write,
    ) -> Result<(), Status> {
        let lost = Err(Status::RetriesExceeded);
        let unroutable = |raw: [u8; 16]| {
            let fault = VerbsFault::Unroutable { raw };
            self.plan.faults.contains(&fault)
        };
        let Some(pair) = self.pairs.get(&route.number) else {
            return lost;
        };
        let (PairState::Hears(back) | PairState::Speaks(back, _)) = pair.state else {
            return lost;
        };
        let there = self.plan.hosts.get(pair.host);
        let reached = there.is_some_and(|host| {
            if route.global {
                host.gids.iter().any(|gid| gid.raw == route.gid)
            } else {
                host.lid == route.lid
            }
        });
        let agreed = back.number == from && back.psn == psn && back.mtu == route.mtu;
        if !reached || !agreed || unroutable(route.gid) || unroutable(back.gid) {
            return lost;
        }
        if there.is_some_and(|host| write.bytes > host.max_message_bytes) {
            return Err(Status::RemoteInvalidRequest);
        }
        let host = pair.host;
        let (memory, keys) = pair.memory.as_ref().ok_or(Status::RemoteAccess)?;
        let offset = write.address.checked_sub(keys.address);
        let offset = offset.and_then(|it| usize::try_from(it).ok());
        let fits = offset.filter(|_| write.key == keys.remote);
        let offset = fits.ok_or(Status::RemoteAccess)?;
        if pair.receives.is_empty() {
            return Err(Status::NotReadyExceeded);
        }
        if !memory.write(offset, bytes) {
            return Err(Status::RemoteAccess);
        }
        let nth = self.receives.get(host).copied().unwrap_or(0);
        if let Some(count) = self.receives.get_mut(host) {
            *count += 1;
        }
        let injected = self
            .plan
            .faults
            .iter()
            .find_map(|fault| fault.of_receive(host, nth));
        let id = self.pairs.get_mut(&route.number);
        let id = id.and_then(|pair| pair.receives.pop_front()).unwrap_or(0);
        if let Some(status) = injected.filter(|it| *it != Status::Success) {
            self.break_pair(route.number, id, status);
            return Ok(());
        }
        let completion = Completion {
            id,
            status: Status::Success,
            vendor: 0,
            bytes: write.bytes,
            immediate: Some(write.immediate),
        };
        self.finish(route.number, completion);
        Ok(())
    }

    /// A piece of work fails and takes the connection with it.
    fn break_pair(&mut self, number: u32, id: u64, status: Status) {
        let failed = Completion {
            status,
            vendor: 0x51,
            ..flushed(id)
        };
        self.finish(number, failed);
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.state = PairState::Error;
        let left: Vec<u64> = pair.receives.drain(..).collect();
        for id in left {
            self.finish(number, flushed(id));
        }
    }

    fn finish(&mut self, number: u32, completion: Completion) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.done.push_back(completion);
        if pair.armed {
            pair.armed = false;
            // A bell that is full has rung.
            let _ = (&pair.bell).write(b"!");
        }
    }
}

impl Pair {
    pub(super) fn new(host: usize, kind: PairKind, receives_max: usize, bell: UnixStream) -> Self {
        Self {
            host,
            kind,
            state: PairState::Reset,
            memory: None,
            receives: VecDeque::new(),
            receives_max,
            done: VecDeque::new(),
            armed: false,
            bell,
            late: None,
        }
    }
}

fn sent(write: &Write) -> Completion {
    Completion {
        id: write.id,
        status: Status::Success,
        vendor: 0,
        bytes: write.bytes,
        immediate: None,
    }
}

fn flushed(id: u64) -> Completion {
    Completion {
        id,
        status: Status::Flushed,
        vendor: 0,
        bytes: 0,
        immediate: None,
    }
}
