//! Streams that are held up by a gate whose peer has not come yet.
//!
//! Work takes effect when it is given, as long as nothing before it in its stream waits. Behind a
//! gate that waits, work is kept and done in its order once the gate has passed; what the host asks
//! of such a stream waits until then. A host that waits does so in real time, since only another of
//! the program's threads can launch what is waited for, and at most for the gate's deadline.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ds4_engine::backend::{BackendError, EventId};
use ds4_engine::device::{DeviceAddress, DeviceId, StreamId};
use ds4_kernels::Launch;

use crate::gate::Gate;
use crate::machine::{SimBackend, lock};

/// How long a host sleeps between two looks at a gate's deadline.
const LOOK: Duration = Duration::from_millis(1);

type Key = (DeviceId, StreamId);

/// Work that a program gives to a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    Launch(Launch),
    Fill {
        address: DeviceAddress,
        bytes: u64,
        value: u8,
    },
    CopyLocal {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: u64,
    },
    CopyPeer {
        from: DeviceAddress,
        to: (DeviceId, DeviceAddress),
        bytes: u64,
    },
}

/// What a held stream keeps.
#[derive(Debug)]
enum Work {
    Gate(Box<Gate>),
    Given(Given),
    Record(EventId),
    /// What another stream holds up to a ticket.
    After(Key, u64),
}

/// What came of kept work.
enum Kept {
    Done,
    Waits { rest: Work, moved: bool },
}

/// All held streams of a machine.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Held streams and failures, looked at before every call, so that machines without gates pay
    /// nothing.
    count: AtomicUsize,
    book: Mutex<Book>,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct Book {
    /// A held stream's work, by tickets that rise over all streams; never empty.
    queues: BTreeMap<Key, VecDeque<(u64, Work)>>,
    tickets: u64,
    /// Events that were recorded behind a gate.
    events: BTreeMap<(DeviceId, EventId), (Key, u64)>,
    /// The first failure of work that was kept.
    failures: BTreeMap<Key, BackendError>,
}

impl Book {
    fn push(&mut self, key: Key, work: Work) -> u64 {
        self.tickets += 1;
        let queue = self.queues.entry(key).or_default();
        queue.push_back((self.tickets, work));
        self.tickets
    }

    fn holds(&self, key: Key, ticket: u64) -> bool {
        let queue = self.queues.get(&key);
        queue
            .and_then(VecDeque::front)
            .is_some_and(|(first, _)| *first <= ticket)
    }
}

impl Held {
    /// The book, unless there is nothing in it.
    fn book(&self) -> Option<MutexGuard<'_, Book>> {
        (self.count.load(Ordering::Acquire) > 0).then(|| lock(&self.book))
    }
}

impl SimBackend {
    /// Does work of a stream, or keeps it if the stream is held.
    pub(crate) fn give(&self, stream: Key, work: Given) -> Result<(), BackendError> {
        if let Some(mut book) = self.held.book()
            && book.queues.contains_key(&stream)
        {
            book.push(stream, Work::Given(work));
            return Ok(());
        }
        if let Some(gate) = self.begin(stream, work)? {
            let mut book = lock(&self.held.book);
            book.push(stream, Work::Gate(Box::new(gate)));
            self.go_on_all(&mut book);
        } else {
            self.go_on_with_held();
        }
        Ok(())
    }

    /// Does work that nothing holds up; of a gate, the beginning.
    fn begin(&self, (device, stream): Key, work: Given) -> Result<Option<Gate>, BackendError> {
        match work {
            Given::Launch(launch) => return self.run_kernel(device, stream, &launch),
            Given::Fill {
                address,
                bytes,
                value,
            } => self.fill_now(device, address, bytes, value, stream)?,
            Given::CopyLocal { from, to, bytes } => {
                self.copy_local_now(device, from, to, bytes, stream)?;
            }
            Given::CopyPeer { from, to, bytes } => {
                self.copy_between((device, from), to, bytes, stream)?;
            }
        }
        Ok(None)
    }

    /// Records an event behind the work of a held stream.
    pub(crate) fn keep_event(&self, stream: Key, event: EventId) {
        let Some(mut book) = self.held.book() else {
            return;
        };
        if book.queues.contains_key(&stream) {
            let ticket = book.push(stream, Work::Record(event));
            book.events.insert((stream.0, event), (stream, ticket));
        }
    }

    /// Makes a stream wait for an event that was recorded behind a gate, if it was.
    pub(crate) fn keep_wait(&self, stream: Key, event: (DeviceId, EventId)) {
        let Some(mut book) = self.held.book() else {
            return;
        };
        if let Some((other, ticket)) = book.events.get(&event).copied() {
            book.push(stream, Work::After(other, ticket));
            self.count(&book);
        }
    }

    /// Makes a stream wait for all that another one holds; false if that is not held.
    pub(crate) fn keep_order(&self, stream: Key, other: Key) -> bool {
        let Some(mut book) = self.held.book() else {
            return false;
        };
        let last = book.queues.get(&other).and_then(VecDeque::back);
        let Some(ticket) = last.map(|(ticket, _)| *ticket) else {
            return false;
        };
        book.push(stream, Work::After(other, ticket));
        self.count(&book);
        true
    }

    /// Whether an event waits behind a gate.
    pub(crate) fn event_is_held(&self, event: (DeviceId, EventId)) -> bool {
        self.held_now(|book| book.events.contains_key(&event))
    }

    /// Whether a stream is held.
    pub(crate) fn is_held(&self, stream: Key) -> bool {
        self.held_now(|book| book.queues.contains_key(&stream))
    }

    fn held_now(&self, holds: impl Fn(&Book) -> bool) -> bool {
        self.held.book().is_some_and(|mut book| {
            self.go_on_all(&mut book);
            holds(&book)
        })
    }

    /// Waits until a stream is held no more.
    pub(crate) fn settle(&self, stream: Key) -> Result<(), BackendError> {
        self.settle_while(|book| book.queues.contains_key(&stream));
        let Some(mut book) = self.held.book() else {
            return Ok(());
        };
        let failure = book.failures.remove(&stream);
        self.count(&book);
        failure.map_or(Ok(()), Err)
    }

    /// Waits until no stream of a device is held.
    pub(crate) fn settle_device(&self, device: DeviceId) {
        self.settle_while(|book| book.queues.keys().any(|key| key.0 == device));
    }

    /// Waits until an event is recorded.
    pub(crate) fn settle_event(&self, event: (DeviceId, EventId)) {
        self.settle_while(|book| book.events.contains_key(&event));
    }

    fn settle_while(&self, holds: impl Fn(&Book) -> bool) {
        let Some(mut book) = self.held.book() else {
            return;
        };
        loop {
            self.go_on_all(&mut book);
            if !holds(&book) {
                return;
            }
            let waited = self.held.progress.wait_timeout(book, LOOK);
            book = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Goes on with what is held: memory that a gate looks at may have changed.
    pub(crate) fn go_on_with_held(&self) {
        if let Some(mut book) = self.held.book() {
            self.go_on_all(&mut book);
        }
    }

    fn go_on_all(&self, book: &mut Book) {
        let mut moved = true;
        while moved {
            moved = false;
            let keys: Vec<Key> = book.queues.keys().copied().collect();
            for key in keys {
                while self.do_first(book, key) {
                    moved = true;
                }
            }
        }
        self.count(book);
        self.held.progress.notify_all();
    }

    fn count(&self, book: &Book) {
        let count = book.queues.len() + book.failures.len();
        self.held.count.store(count, Ordering::Release);
    }

    /// Does the first work of a held stream, as far as nothing holds it up; true if that was
    /// something.
    fn do_first(&self, book: &mut Book, stream: Key) -> bool {
        let Some((ticket, work)) = book.queues.get_mut(&stream).and_then(VecDeque::pop_front)
        else {
            book.queues.remove(&stream);
            return false;
        };
        match self.do_kept(book, stream, work) {
            Ok(Kept::Done) => {}
            Ok(Kept::Waits { rest, moved }) => {
                let queue = book.queues.entry(stream).or_default();
                queue.push_front((ticket, rest));
                return moved;
            }
            Err(error) => {
                book.failures.entry(stream).or_insert(error);
            }
        }
        if book.queues.get(&stream).is_some_and(VecDeque::is_empty) {
            book.queues.remove(&stream);
        }
        true
    }

    fn do_kept(&self, book: &mut Book, stream: Key, work: Work) -> Result<Kept, BackendError> {
        match work {
            Work::Gate(mut gate) => {
                let before = gate.stage();
                if !self.go_on(&mut gate)? {
                    let moved = gate.stage() != before;
                    let rest = Work::Gate(gate);
                    return Ok(Kept::Waits { rest, moved });
                }
            }
            Work::Given(work) => {
                if let Some(gate) = self.begin(stream, work)? {
                    let rest = Work::Gate(Box::new(gate));
                    return Ok(Kept::Waits { rest, moved: true });
                }
            }
            Work::Record(event) => {
                let (device, queue) = stream;
                book.events.remove(&(device, event));
                let mut state = self.state(device, "cuEventRecord")?;
                state.streams.record_again(queue, event);
            }
            Work::After(other, ticket) => {
                if book.holds(other, ticket) {
                    let rest = Work::After(other, ticket);
                    return Ok(Kept::Waits { rest, moved: false });
                }
                self.order_now(stream, other);
            }
        }
        Ok(Kept::Done)
    }
}
