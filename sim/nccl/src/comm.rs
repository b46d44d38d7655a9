//! Communicators: a thread for each, so that no call waits for another rank.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::driver::Driver;
use crate::fault::Fault;
use crate::hub::{self, NAME_BYTES};

/// `ncclResult_t`.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const UNHANDLED_CUDA: u32 = 1;
    pub(crate) const SYSTEM: u32 = 2;
    pub(crate) const INTERNAL: u32 = 3;
    pub(crate) const INVALID_ARGUMENT: u32 = 4;
    pub(crate) const INVALID_USAGE: u32 = 5;
    pub(crate) const REMOTE: u32 = 6;
    pub(crate) const IN_PROGRESS: u32 = 7;
}

/// A sum that was asked for.
pub(crate) struct Sum {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: usize,
    pub(crate) stream: usize,
}

/// A communicator.
pub(crate) struct Comm {
    shared: Arc<Shared>,
    sums: Sender<Sum>,
}

struct Shared {
    state: AtomicU32,
    /// Closing it ends what waits on it.
    stream: Mutex<Option<TcpStream>>,
}

impl Comm {
    /// Begins to join a group; [`Comm::state`] says when it is done.
    pub(crate) fn start(
        name: [u8; NAME_BYTES],
        (rank, ranks): (u32, u32),
        driver: Driver,
        fault: Option<Fault>,
    ) -> Result<Self, u32> {
        let context = driver.current().ok_or(code::UNHANDLED_CUDA)?;
        let shared = Arc::new(Shared {
            state: AtomicU32::new(code::IN_PROGRESS),
            stream: Mutex::new(None),
        });
        let (sums, taken) = channel();
        let member = Member {
            shared: Arc::clone(&shared),
            driver,
            context,
            fault,
            count: 0,
        };
        let spawned = thread::Builder::new().spawn(move || member.run(&name, rank, ranks, &taken));
        spawned.map_err(|_| code::SYSTEM)?;
        Ok(Self { shared, sums })
    }

    pub(crate) fn state(&self) -> u32 {
        self.shared.state.load(Ordering::Acquire)
    }

    /// Begins a sum.
    pub(crate) fn sum(&self, sum: Sum) -> u32 {
        match self.state() {
            code::SUCCESS => {}
            code::IN_PROGRESS => return code::INVALID_USAGE,
            failed => return failed,
        }
        self.shared
            .state
            .store(code::IN_PROGRESS, Ordering::Release);
        match self.sums.send(sum) {
            Ok(()) => code::IN_PROGRESS,
            Err(_) => code::INTERNAL,
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Some(stream) = &*self.shared.stream() {
            // A connection that is gone already waits for nobody.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn stream(&self) -> std::sync::MutexGuard<'_, Option<TcpStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's side.
struct Member {
    shared: Arc<Shared>,
    driver: Driver,
    context: usize,
    fault: Option<Fault>,
    count: u64,
}

impl Member {
    fn run(mut self, name: &[u8; NAME_BYTES], rank: u32, ranks: u32, sums: &Receiver<Sum>) {
        match self.fault {
            Some(Fault::JoinHangs) => return,
            Some(Fault::JoinFails) => return self.set(code::SYSTEM),
            _ => {}
        }
        let joined = hub::join(name, rank, ranks);
        let Ok(mut stream) = joined else {
            return self.set(code::SYSTEM);
        };
        *self.shared.stream() = stream.try_clone().ok();
        if !self.driver.enter(self.context) {
            return self.set(code::UNHANDLED_CUDA);
        }
        self.set(code::SUCCESS);
        while let Ok(sum) = sums.recv() {
            self.count += 1;
            if self.fault == Some(Fault::SumHangs(self.count)) {
                continue;
            }
            let done = self.sum(&sum, &mut stream);
            self.set(done.err().unwrap_or(code::SUCCESS));
        }
    }

    /// The part comes off the device once its stream is empty, and the sum goes there.
    fn sum(&self, sum: &Sum, stream: &mut TcpStream) -> Result<(), u32> {
        if self.fault == Some(Fault::SumFails(self.count)) {
            return Err(code::UNHANDLED_CUDA);
        }
        let on_device = |done: bool| done.then_some(()).ok_or(code::UNHANDLED_CUDA);
        on_device(self.driver.wait(sum.stream))?;
        let part = self.driver.read(sum.from, sum.bytes);
        let mut part = part.ok_or(code::UNHANDLED_CUDA)?;
        hub::sum(stream, &mut part).map_err(|_| code::REMOTE)?;
        if self.fault == Some(Fault::SumFlips(self.count)) {
            // Where a proof by whole numbers looks, not one by fractions.
            let place = part.len() / 4;
            if let Some(byte) = part.get_mut(place) {
                *byte ^= 1;
            }
        }
        on_device(self.driver.write(sum.to, &part))
    }

    fn set(&self, state: u32) {
        self.shared.state.store(state, Ordering::Release);
    }
}
