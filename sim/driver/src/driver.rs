//! The library's one machine, from the first initialisation to the end of the process.

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock};

use ds4_engine::backend::Backend;
use ds4_engine::device::{DeviceId, DeviceInfo};
use ds4_sim::{Instruments, SimBackend};

use crate::call;
use crate::config::Config;
use crate::status::Status;
use crate::tables::Tables;

static DRIVER: RwLock<Option<Arc<Driver>>> = RwLock::new(None);

/// The machine and what the caller holds of it.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) sim: SimBackend,
    /// The version that it shall give, if one was set.
    pub(crate) version: Option<u32>,
    lists_ledger: bool,
    tables: Mutex<Tables>,
}

impl Driver {
    /// The driver, once it is initialised.
    pub(crate) fn get() -> Result<Arc<Self>, Status> {
        let driver = DRIVER.read().unwrap_or_else(PoisonError::into_inner);
        driver.clone().ok_or(Status::NOT_INITIALIZED)
    }

    /// The driver, initialised from the environment if it is not yet.
    pub(crate) fn initialise() -> Result<Arc<Self>, Status> {
        if let Ok(driver) = Self::get() {
            return Ok(driver);
        }
        Self::replace(&Config::from_environment(), false)
    }

    /// Initialises the driver; `anew` drops the machine that there was, with all that was on it.
    pub(crate) fn replace(config: &Config, anew: bool) -> Result<Arc<Self>, Status> {
        let mut place = DRIVER.write().unwrap_or_else(PoisonError::into_inner);
        if let (Some(driver), false) = (&*place, anew) {
            return Ok(Arc::clone(driver));
        }
        *place = None;
        let driver = Self::open(config).map_err(|problem| {
            // Nobody else can tell: the caller learns a code only.
            let _ = writeln!(std::io::stderr(), "ds4 simulated driver: {problem}");
            Status::UNKNOWN
        })?;
        let driver = Arc::new(driver.ok_or(Status::NO_DEVICE)?);
        *place = Some(Arc::clone(&driver));
        list_ledger_at_exit(driver.lists_ledger);
        Ok(driver)
    }

    fn open(config: &Config) -> Result<Option<Self>, String> {
        call::log_to(config.log()?);
        let version = config.version()?;
        let machine = config.machine()?;
        Ok(machine.map(|sim| Self {
            tables: Mutex::new(Tables::new(sim.devices().len())),
            sim,
            version,
            lists_ledger: config.lists_ledger(),
        }))
    }

    /// What the caller holds. Calls of the machine are made without this lock, unless two threads
    /// must not both find the same thing.
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of a number.
    pub(crate) fn device(&self, number: i32) -> Result<DeviceId, Status> {
        let index = usize::try_from(number).map_err(|_| Status::INVALID_DEVICE)?;
        let count = self.sim.devices().len();
        let device = DeviceId::new(index).filter(|_| index < count);
        device.ok_or(Status::INVALID_DEVICE)
    }

    /// What stays true of a device.
    pub(crate) fn info(&self, device: DeviceId) -> Result<&DeviceInfo, Status> {
        let infos = self.sim.devices();
        infos.get(device.index()).ok_or(Status::INVALID_DEVICE)
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> i32 {
        i32::try_from(self.sim.devices().len()).unwrap_or(0)
    }
}

fn list_ledger_at_exit(wanted: bool) {
    static ONCE: Once = Once::new();
    unsafe extern "C" {
        fn atexit(work: extern "C" fn()) -> i32;
    }
    if wanted {
        ONCE.call_once(|| {
            // SAFETY: atexit takes any function of this type; the C library calls it before this
            // library is unloaded.
            unsafe { atexit(list_ledger) };
        });
    }
}

extern "C" fn list_ledger() {
    let listed = std::panic::catch_unwind(|| {
        let Ok(driver) = Driver::get() else {
            return;
        };
        let ledger = driver.sim.ledger();
        ledger.check_shutdown();
        let mut out = std::io::stderr().lock();
        let count = ledger.finding_count();
        let _ = writeln!(out, "ds4 simulated driver: the ledger has {count} findings");
        for finding in ledger.findings() {
            let _ = writeln!(out, "  {finding}");
        }
    });
    // There is nobody left to tell.
    drop(listed);
}
