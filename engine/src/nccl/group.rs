//! A rank's membership of a group, on a thread of its own.
//!
//! The owner gives orders and looks for answers; neither ever waits for the library. The thread makes
//! every call, so that nobody else has the communicator when it is aborted.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::layout::ID_BYTES;
use super::library::{CallError, Comm, Library};
use crate::backend::driver::DriverBackend;
use crate::backend::{Backend as _, BackendError};
use crate::device::{DeviceAddress, DeviceId, StreamId};

/// How often the thread looks in vain before it sleeps between looks.
const LOOKS: u32 = 2_000;
const PAUSE: Duration = Duration::from_micros(50);
/// How long a membership that nobody ended may take to end.
const END: Duration = Duration::from_secs(2);

/// Where a rank's sums are made.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The library.
    pub library: Arc<Library>,
    /// The driver of the device.
    pub backend: Arc<DriverBackend>,
    /// The device.
    pub device: DeviceId,
}

/// What the thread is to do.
#[derive(Clone, Debug)]
pub enum Order {
    /// Make the name of a new group: rank 0, once.
    Name,
    /// Join the group of this name.
    Join {
        /// Its name.
        id: Box<[u8; ID_BYTES]>,
        /// The own rank.
        rank: u32,
        /// How many ranks there are.
        ranks: u32,
    },
    /// Sum 32-bit floats of all ranks.
    Sum {
        /// The own part.
        from: DeviceAddress,
        /// The sum's place.
        to: DeviceAddress,
        /// Bytes of each.
        bytes: u64,
    },
    /// Leave in order.
    Leave,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name of a new group.
    Name(Box<[u8; ID_BYTES]>),
    /// It is done; of a sum, the bytes are there.
    Done,
    /// It failed.
    Failed(String),
}

/// Why the thread ends an order.
enum Ended {
    Call(CallError),
    Device(BackendError),
    Order(&'static str),
    /// The owner has given up.
    GivenUp,
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<BackendError> for Ended {
    fn from(error: BackendError) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::Order(why) => f.write_str(why),
            Self::GivenUp => f.write_str("given up"),
        }
    }
}

#[derive(Debug)]
struct Shared {
    give_up: AtomicBool,
    /// The library's function that is being called, for the case that it never returns.
    calling: Mutex<&'static str>,
    bell: OwnedFd,
}

/// A membership in the making, at work or at its end.
#[derive(Debug)]
pub struct Group {
    orders: Option<Sender<Order>>,
    answers: Receiver<Answer>,
    shared: Arc<Shared>,
    /// Whether an order's answer is missing.
    waits: bool,
    joined: bool,
    library: Arc<Library>,
}

impl Group {
    /// Starts the thread.
    ///
    /// # Errors
    /// Of the system: no thread, or no descriptor.
    pub fn start(seat: &Seat) -> io::Result<Self> {
        let (orders, taken) = channel();
        let (given, answers) = channel();
        let shared = Arc::new(Shared {
            give_up: AtomicBool::new(false),
            calling: Mutex::new("no function"),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let member = Member {
            seat: seat.clone(),
            shared: Arc::clone(&shared),
            stream: StreamId::DEFAULT,
            comm: None,
        };
        let named = thread::Builder::new().name("collectives".to_owned());
        named.spawn(move || member.run(&taken, &given))?;
        Ok(Self {
            orders: Some(orders),
            answers,
            shared,
            waits: false,
            joined: false,
            library: Arc::clone(&seat.library),
        })
    }

    /// Which library, which file.
    #[must_use]
    pub fn origin(&self) -> String {
        self.library.origin()
    }

    /// Gives an order; the last one was answered.
    pub fn order(&mut self, order: Order) {
        self.waits = true;
        self.joined |= matches!(order, Order::Join { .. });
        if let Some(orders) = &self.orders {
            // A thread that ended shows in the answer.
            let _ = orders.send(order);
        }
    }

    /// The answer, if it is there.
    pub fn answer(&mut self) -> Option<Answer> {
        use std::sync::mpsc::TryRecvError;
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Answer::Failed("the thread of the collective library ended".to_owned())
            }
        };
        self.waits = false;
        Some(answer)
    }

    /// What becomes readable when an answer is there. It may be readable for an answer that was
    /// taken already.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Makes the bell quiet, before a look for the answer.
    pub fn hush(&self) {
        // Nothing to read is quiet too.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }

    /// Ends the membership whatever is under way: the thread aborts the communicator.
    ///
    /// # Errors
    /// It did not end in time, in words: a call hangs, and the thread and what it uses stay.
    pub fn give_up(&mut self, limit: Duration) -> Result<(), String> {
        self.shared.give_up.store(true, Ordering::Release);
        self.orders = None;
        loop {
            match self.answers.recv_timeout(limit) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    self.library.set_stuck();
                    let calling = self.shared.calling.lock();
                    let calling = calling.unwrap_or_else(PoisonError::into_inner);
                    return Err(format!(
                        "{calling} has not returned: its thread, and the device memory that it \
                         may use, are left to the end of the process"
                    ));
                }
            }
        }
    }
}

impl Drop for Group {
    /// Leaves in order if nothing is under way, else gives up.
    fn drop(&mut self) {
        if self.orders.is_some() && self.joined && !self.waits {
            self.order(Order::Leave);
            // How it went is nobody's concern any more; giving up follows either way.
            let _ = self.answers.recv_timeout(END);
        }
        if self.orders.is_some() {
            let _ = self.give_up(END);
        }
    }
}

/// The thread's side.
struct Member {
    seat: Seat,
    shared: Arc<Shared>,
    stream: StreamId,
    comm: Option<Comm>,
}

impl Member {
    fn run(mut self, orders: &Receiver<Order>, answers: &Sender<Answer>) {
        while let Ok(order) = orders.recv() {
            let answer = match self.obey(order) {
                Ok(answer) => answer,
                Err(ended) => Answer::Failed(ended.to_string()),
            };
            if answers.send(answer).is_err() {
                break;
            }
            // A full counter is readable too.
            let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
        }
        if let Some(comm) = self.comm.take() {
            // The work on the device ends with it; what it says about it helps nobody any more.
            let _ = self.calls("ncclCommAbort", |library| library.abort(comm));
        }
        if self.stream != StreamId::DEFAULT {
            let (device, stream) = (self.seat.device, self.stream);
            let _ = self.seat.backend.destroy_stream(device, stream);
        }
    }

    fn obey(&mut self, order: Order) -> Result<Answer, Ended> {
        match order {
            Order::Name => {
                let id = self.on_device("ncclGetUniqueId", |library, _| library.unique_id())?;
                Ok(Answer::Name(Box::new(id)))
            }
            Order::Join { id, rank, ranks } => {
                self.stream = self.seat.backend.create_stream(self.seat.device)?;
                let join = |library: &Library, _| library.join(*id, (rank, ranks));
                let comm = self.on_device("ncclCommInitRankConfig", join)?;
                self.comm = Some(comm);
                self.settle("ncclCommInitRankConfig")?;
                Ok(Answer::Done)
            }
            Order::Sum { from, to, bytes } => {
                self.sum(from, to, bytes)?;
                Ok(Answer::Done)
            }
            Order::Leave => {
                let comm = self.comm.as_ref().ok_or(NOT_JOINED)?;
                self.calls("ncclCommFinalize", |library| library.finalize(comm))?;
                self.settle("ncclCommFinalize")?;
                if let Some(comm) = self.comm.take() {
                    self.calls("ncclCommDestroy", |library| library.leave(comm))?;
                }
                Ok(Answer::Done)
            }
        }
    }

    fn sum(&self, from: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), Ended> {
        const FLOAT_BYTES: u64 = 4;
        let comm = self.comm.as_ref().ok_or(NOT_JOINED)?;
        let floats = bytes / FLOAT_BYTES;
        let count = usize::try_from(floats)
            .ok()
            .filter(|_| bytes.is_multiple_of(FLOAT_BYTES));
        let count = count.ok_or(Ended::Order("a sum of bytes that are no 32-bit floats"))?;
        self.on_device("ncclAllReduce", |library, stream| {
            library.sum(comm, (from.0, to.0), count, stream)
        })?;
        // Its first sum may still be connecting: only then is the work on the stream.
        self.settle("ncclAllReduce")?;
        let (backend, device) = (&self.seat.backend, self.seat.device);
        let event = backend.record_event(device, self.stream)?;
        let done = self.wait(&mut || {
            let done = backend.event_done(device, event)?;
            if !done {
                self.seat.library.state(comm, "ncclAllReduce")?;
            }
            Ok(done)
        });
        backend.destroy_event(device, event)?;
        done
    }

    /// Waits until the library has done what was begun.
    fn settle(&self, call: &'static str) -> Result<(), Ended> {
        let comm = self.comm.as_ref().ok_or(NOT_JOINED)?;
        self.wait(&mut || {
            let state = |library: &Library| library.state(comm, call);
            Ok(self.calls("ncclCommGetAsyncError", state)?)
        })
    }

    /// Looks until it is done, for as long as the owner has not given up.
    fn wait(&self, done: &mut dyn FnMut() -> Result<bool, Ended>) -> Result<(), Ended> {
        let mut vain = 0_u32;
        while !done()? {
            if self.shared.give_up.load(Ordering::Acquire) {
                return Err(Ended::GivenUp);
            }
            vain = vain.saturating_add(1);
            if vain < LOOKS {
                thread::yield_now();
            } else {
                pause();
            }
        }
        Ok(())
    }

    /// Calls the library with the device as the thread's.
    fn on_device<T>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Library, usize) -> Result<T, CallError>,
    ) -> Result<T, Ended> {
        let (device, stream) = (self.seat.device, self.stream);
        let entered = self.seat.backend.on_stream(device, stream, |stream| {
            self.calls(call, |library| work(library, stream))
        })?;
        Ok(entered?)
    }

    fn calls<T>(&self, call: &'static str, work: impl FnOnce(&Library) -> T) -> T {
        let set = |name| {
            let calling = self.shared.calling.lock();
            *calling.unwrap_or_else(PoisonError::into_inner) = name;
        };
        set(call);
        let result = work(&self.seat.library);
        set("a function of the driver");
        result
    }
}

const NOT_JOINED: Ended = Ended::Order("no group was joined");

#[expect(
    clippy::disallowed_methods,
    reason = "the library has no bell: it is asked again and again"
)]
fn pause() {
    thread::sleep(PAUSE);
}
