//! What a backend hands out is taken back once, and nothing else is: on a simulated driver.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use ds4_embedded::{Interface, Loaded};
use ds4_engine::backend::driver::{Driver, DriverBackend, Vendor};
use ds4_engine::backend::{Backend, BackendError, PageId};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, Ordinal, PeerAccess, StreamId};

const THREADS: usize = 4;

/// How many of several threads that do the same at once succeed.
fn winners(work: impl Fn() -> Result<(), BackendError> + Sync) -> usize {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(&work)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.filter(Result::is_ok).count()
    })
}

struct Books {
    backend: Arc<DriverBackend>,
    device: DeviceId,
}

impl Books {
    /// A call that is refused, without a word to the driver.
    fn refuses(&self, part: &str, call: impl FnOnce(&DriverBackend) -> Result<(), BackendError>) {
        let before = self.backend.driver_calls();
        let error = call(&self.backend).unwrap_err();
        assert_eq!(self.backend.driver_calls(), before, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }

    fn memory(&self) {
        let (device, backend) = (self.device, &*self.backend);
        self.refuses("nothing was allocated", |b| {
            b.free(device, DeviceAddress(4096))
        });
        for _ in 0..16 {
            let address = backend.allocate(device, MIB).unwrap();
            let inside = DeviceAddress(address.0 + 256);
            self.refuses("nothing was allocated", |b| b.free(device, inside));
            assert_eq!(winners(|| backend.free(device, address)), 1);
            self.refuses("nothing was allocated", |b| b.free(device, address));
        }
    }

    fn pages(&self) {
        let (device, backend) = (self.device, &*self.backend);
        let bytes = backend.devices()[0].page_bytes.unwrap();
        let base = backend.reserve(device, bytes).unwrap();
        self.refuses("no page", |b| b.destroy_page(device, PageId(7)));
        self.refuses("nothing is mapped", |b| b.unmap(device, base));
        self.refuses("were reserved", |b| b.release(device, base, 2 * bytes));
        for _ in 0..16 {
            let page = backend.create_page(device).unwrap();
            backend.map(device, base, page, DeviceMask::EMPTY).unwrap();
            self.refuses("is mapped", |b| b.destroy_page(device, page));
            assert_eq!(winners(|| backend.unmap(device, base)), 1);
            assert_eq!(winners(|| backend.destroy_page(device, page)), 1);
        }
        assert_eq!(winners(|| backend.release(device, base, bytes)), 1);
    }

    fn streams(&self) {
        let (device, backend) = (self.device, &*self.backend);
        for _ in 0..16 {
            let stream = backend.create_stream(device).unwrap();
            let event = backend.record_event(device, stream).unwrap();
            assert_eq!(winners(|| backend.destroy_event(device, event)), 1);
            assert_eq!(winners(|| backend.destroy_stream(device, stream)), 1);
            self.refuses("no event", |b| b.destroy_event(device, event));
        }
        assert!(backend.destroy_stream(device, StreamId::DEFAULT).is_err());
    }
}

#[test]
fn what_was_handed_out_is_taken_back_once_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = Interface::Cuda.write_to(folder.path()).unwrap();
    let library = Loaded::open(&path).unwrap();
    library.configure("DS4_FAKE_GPUS=256M").unwrap();
    let driver = Driver::load(Vendor::Cuda).unwrap();
    let backend = DriverBackend::open(&driver, &[Ordinal(0)], DeviceMask::EMPTY, false);
    let books = Books {
        backend: Arc::new(backend.unwrap()),
        device: DeviceId::new(0).unwrap(),
    };
    books.memory();
    books.pages();
    books.streams();
    drop(books);
    assert_eq!(library.findings(true).unwrap(), Vec::<String>::new());
}

#[test]
fn a_verdict_that_failed_once_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = Interface::Cuda.write_to(folder.path()).unwrap();
    let library = Loaded::open(&path).unwrap();
    library.configure("DS4_FAKE_GPUS=256M,256M").unwrap();
    let driver = Driver::load(Vendor::Cuda).unwrap();
    let places = [Ordinal(0), Ordinal(1)];
    let backend = DriverBackend::open(&driver, &places, DeviceMask::EMPTY, false).unwrap();
    let (from, to) = (DeviceId::new(0).unwrap(), DeviceId::new(1).unwrap());
    let plan = r#"{"faults": [{"at": "reserve", "kind": "fail"}]}"#;
    library.set_faults(plan).unwrap();
    assert!(backend.peer_access(from, to).is_err());
    assert_eq!(backend.peer_access(from, to), Ok(PeerAccess::Direct));
}
