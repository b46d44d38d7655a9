//! Streams, events and the order between pieces of work.
//!
//! Work of a stream runs one piece after another on the virtual clock. Data effects happen at once,
//! so the values that a program sees do not depend on timing; what is modelled is the *order*: two
//! pieces of work on the same bytes, at least one of them writing, must be ordered by their stream,
//! by an event that a stream waits for, or by the host, which has seen the first one done
//! (`synchronize`, `wait_event`, `event_done` = true, `free`, which waits for the device). Anything
//! else is a race, even when the clock would let it pass: on hardware, timing is not a promise.
//!
//! Not modelled: streams share neither bandwidth nor compute, and what one host thread has seen
//! counts as seen by all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ds4_engine::backend::EventId;
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};

use crate::finding::StreamRace;

/// Accesses noted for each device before those that the host has seen done are dropped.
const ACCESSES_SOFT: usize = 128;
/// Accesses kept before those that are done on the virtual clock are dropped, seen or not, and then
/// the first of the list.
const ACCESSES_HARD: usize = 1024;

/// One life of a stream: a later stream of the same number is another one.
#[derive(Debug)]
pub(crate) struct StreamLife {
    device: DeviceId,
    stream: StreamId,
    /// All work up to this number is known to the host as done.
    seen_done: AtomicU64,
}

/// "After work `number` of that stream", for several streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct After(Vec<(Arc<StreamLife>, u64)>);

impl After {
    fn merge(&mut self, other: &Self) {
        self.0
            .retain(|(life, number)| life.seen_done.load(Ordering::Relaxed) < *number);
        for (life, number) in &other.0 {
            self.add(life, *number);
        }
    }

    fn add(&mut self, life: &Arc<StreamLife>, number: u64) {
        match self
            .0
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, life))
        {
            Some((_, known)) => *known = (*known).max(number),
            None => self.0.push((Arc::clone(life), number)),
        }
    }

    fn covers(&self, life: &Arc<StreamLife>, number: u64) -> bool {
        self.0
            .iter()
            .any(|(known, up_to)| Arc::ptr_eq(known, life) && *up_to >= number)
    }

    /// The host has seen that all of it is done.
    fn see_done(&self) {
        for (life, number) in &self.0 {
            life.seen_done.fetch_max(*number, Ordering::Relaxed);
        }
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    life: Arc<StreamLife>,
    enqueued: u64,
    done_ns: u64,
    after: After,
}

impl Stream {
    fn new(device: DeviceId, stream: StreamId) -> Self {
        let life = Arc::new(StreamLife {
            device,
            stream,
            seen_done: AtomicU64::new(0),
        });
        Self {
            life,
            enqueued: 0,
            done_ns: 0,
            after: After::default(),
        }
    }

    /// Adds work that takes `duration_ns`, not before `now_ns`; returns when it is done.
    pub(crate) fn enqueue(&mut self, now_ns: u64, duration_ns: u64) -> u64 {
        self.enqueued += 1;
        self.done_ns = self.done_ns.max(now_ns).saturating_add(duration_ns);
        self.done_ns
    }

    /// The host has waited for all work.
    pub(crate) fn see_done(&self) {
        self.life
            .seen_done
            .fetch_max(self.enqueued, Ordering::Relaxed);
        self.after.see_done();
    }

    pub(crate) fn done_ns(&self) -> u64 {
        self.done_ns
    }

    fn event(&self) -> Event {
        let mut after = self.after.clone();
        after.add(&self.life, self.enqueued);
        Event {
            done_ns: self.done_ns,
            after,
        }
    }

    fn wait_for(&mut self, event: &Event) {
        self.done_ns = self.done_ns.max(event.done_ns);
        self.after.merge(&event.after);
    }
}

/// A recorded point.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    done_ns: u64,
    after: After,
}

impl Event {
    pub(crate) fn done_ns(&self) -> u64 {
        self.done_ns
    }

    pub(crate) fn see_done(&self) {
        self.after.see_done();
    }
}

/// The streams and events of a device.
#[derive(Debug)]
pub(crate) struct Streams {
    device: DeviceId,
    streams: BTreeMap<u32, Stream>,
    /// Numbers that were in use and are free again.
    freed: BTreeSet<u32>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
}

impl Streams {
    pub(crate) fn new(device: DeviceId) -> Self {
        let default = Stream::new(device, StreamId::DEFAULT);
        Self {
            device,
            streams: BTreeMap::from([(StreamId::DEFAULT.0, default)]),
            freed: BTreeSet::new(),
            events: BTreeMap::new(),
            next_event: 1,
        }
    }

    /// Makes a stream with the least number that is not in use.
    pub(crate) fn create(&mut self) -> Option<StreamId> {
        // Without a freed number, those in use are 0 to one less than their count.
        let number = match self.freed.pop_first() {
            Some(number) => number,
            None => u32::try_from(self.streams.len()).ok()?,
        };
        let stream = StreamId(number);
        self.streams
            .insert(number, Stream::new(self.device, stream));
        Some(stream)
    }

    pub(crate) fn remove(&mut self, stream: StreamId) -> Option<Stream> {
        let removed = self.streams.remove(&stream.0)?;
        self.freed.insert(stream.0);
        Some(removed)
    }

    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(&stream.0)
    }

    pub(crate) fn record(&mut self, stream: StreamId) -> Option<EventId> {
        let event = self.streams.get(&stream.0)?.event();
        let id = self.next_event;
        self.next_event += 1;
        self.events.insert(id, event);
        Some(EventId(id))
    }

    /// Records an event anew, if it is still there.
    pub(crate) fn record_again(&mut self, stream: StreamId, event: EventId) {
        if let (Some(stream), Some(event)) =
            (self.streams.get(&stream.0), self.events.get_mut(&event.0))
        {
            *event = stream.event();
        }
    }

    pub(crate) fn event(&self, event: EventId) -> Option<&Event> {
        self.events.get(&event.0)
    }

    pub(crate) fn remove_event(&mut self, event: EventId) -> Option<Event> {
        self.events.remove(&event.0)
    }

    /// Makes a stream wait for an event of any device; false when there is no such stream.
    pub(crate) fn wait_for(&mut self, stream: StreamId, event: &Event) -> bool {
        self.get_mut(stream)
            .map(|stream| stream.wait_for(event))
            .is_some()
    }

    /// The host has waited for all streams; returns when the last one is done.
    pub(crate) fn see_all_done(&self) -> u64 {
        for stream in self.streams.values() {
            stream.see_done();
        }
        self.streams
            .values()
            .map(Stream::done_ns)
            .max()
            .unwrap_or(0)
    }

    /// The numbers of the streams and of the events, ascending.
    pub(crate) fn numbers(&self) -> (impl Iterator<Item = u32>, impl Iterator<Item = u64>) {
        (self.streams.keys().copied(), self.events.keys().copied())
    }
}

#[derive(Debug)]
struct Access {
    start: u64,
    end: u64,
    writes: bool,
    life: Arc<StreamLife>,
    number: u64,
    done_ns: u64,
}

impl Access {
    fn seen_done(&self) -> bool {
        self.life.seen_done.load(Ordering::Relaxed) >= self.number
    }

    fn is_covered_by(&self, start: u64, end: u64, writes: bool) -> bool {
        start <= self.start && self.end <= end && (writes || !self.writes)
    }

    fn race(
        &self,
        (start, end): (u64, u64),
        device: DeviceId,
        later_call: &'static str,
        later: Option<(DeviceId, StreamId)>,
    ) -> StreamRace {
        let from = self.start.max(start);
        StreamRace {
            device,
            address: DeviceAddress(from),
            bytes: self.end.min(end) - from,
            earlier: (self.life.device, self.life.stream),
            later_call,
            later,
        }
    }
}

/// The work on a device's memory that the host does not know to be done.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    list: Vec<Access>,
    /// Work noted since the list was last looked through as a whole.
    noted: usize,
}

impl Accesses {
    /// Notes that the last work of `stream` touches `start..end` of `device`; returns the first
    /// earlier work with which it races.
    pub(crate) fn note(
        &mut self,
        device: DeviceId,
        (start, end): (u64, u64),
        writes: bool,
        stream: &Stream,
        call: &'static str,
    ) -> Option<StreamRace> {
        if start >= end {
            return None;
        }
        let mut race = None;
        let mut covered = None;
        let mut covered_more = false;
        let overlapping = |(_, access): &(usize, &Access)| access.start < end && start < access.end;
        for (index, access) in self.list.iter().enumerate().filter(overlapping) {
            if Arc::ptr_eq(&access.life, &stream.life) {
                if access.is_covered_by(start, end, writes) {
                    covered_more |= covered.is_some();
                    covered.get_or_insert(index);
                }
            } else if race.is_none()
                && (writes || access.writes)
                && !access.seen_done()
                && !stream.after.covers(&access.life, access.number)
            {
                let later = Some((stream.life.device, stream.life.stream));
                race = Some(access.race((start, end), device, call, later));
            }
        }
        let access = Access {
            start,
            end,
            writes,
            life: Arc::clone(&stream.life),
            number: stream.enqueued,
            done_ns: stream.done_ns,
        };
        self.noted += 1;
        // Work of the same stream on the same bytes stands for what it covers.
        if covered_more {
            self.list.retain(|other| {
                !(Arc::ptr_eq(&other.life, &stream.life) && other.is_covered_by(start, end, writes))
            });
            covered = None;
        }
        match covered.and_then(|index| self.list.get_mut(index)) {
            Some(slot) => *slot = access,
            None => self.list.push(access),
        }
        race
    }

    /// Keeps the list short; `now_ns` is the virtual time.
    pub(crate) fn prune(&mut self, now_ns: u64) {
        // As many notes as entries pay for looking at all of them.
        if self.noted < self.list.len().clamp(ACCESSES_SOFT, ACCESSES_HARD / 2) {
            return;
        }
        self.noted = 0;
        self.list.retain(|access| !access.seen_done());
        if self.list.len() >= ACCESSES_HARD {
            self.list.retain(|access| access.done_ns > now_ns);
            let excess = self.list.len().saturating_sub(ACCESSES_HARD / 2);
            self.list.drain(..excess);
        }
    }

    /// Forgets `start..end`, whose memory goes away; returns the first work that may still run.
    pub(crate) fn forget(
        &mut self,
        device: DeviceId,
        (start, end): (u64, u64),
        call: &'static str,
    ) -> Option<StreamRace> {
        let race = self
            .list
            .iter()
            .find(|access| access.start < end && start < access.end && !access.seen_done())
            .map(|access| access.race((start, end), device, call, None));
        self.list
            .retain(|access| access.end <= start || end <= access.start);
        race
    }
}
