//! Opening the machine that a command runs on. A missing backend is an error, never a fallback.

use std::fmt;
use std::sync::Arc;

use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::{Driver, DriverBackend, OpenError, Vendor};
use ds4_engine::device::Ordinal;
use ds4_sim::{InputError, SimBackend, SimConfig};

/// A backend by the name that users give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Simulated devices.
    Sim,
    /// NVIDIA devices through the CUDA driver.
    Cuda,
    /// AMD devices through the HIP runtime.
    Hip,
}

impl BackendKind {
    /// The backend of a name in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "sim" => Some(Self::Sim),
            "cuda" => Some(Self::Cuda),
            "hip" => Some(Self::Hip),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
        }
    }
}

/// Why a machine could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// The description of a simulated machine is wrong.
    Input(InputError),
    /// The devices cannot be opened.
    Open(OpenError),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TargetError {}

impl From<InputError> for TargetError {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

impl From<OpenError> for TargetError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// The machine that a command runs on.
#[derive(Clone, Debug)]
pub struct Target {
    kind: BackendKind,
    backend: Arc<dyn Backend>,
    sim: Option<Arc<SimBackend>>,
    real: Option<Arc<DriverBackend>>,
}

impl Target {
    /// A simulated machine.
    ///
    /// # Errors
    /// [`TargetError::Input`] when the description is not valid.
    pub fn simulated(config: SimConfig) -> Result<Self, TargetError> {
        let sim = Arc::new(SimBackend::new(config)?);
        Ok(Self {
            kind: BackendKind::Sim,
            backend: sim.clone(),
            sim: Some(sim),
            real: None,
        })
    }

    /// Real devices of a driver, by its own numbers and in this order.
    ///
    /// # Errors
    /// [`TargetError::Open`].
    pub fn real(
        driver: &Driver,
        ordinals: &[Ordinal],
        force_bounce: bool,
    ) -> Result<Self, TargetError> {
        let backend = Arc::new(DriverBackend::open(driver, ordinals, force_bounce)?);
        let kind = match backend.vendor() {
            Vendor::Cuda => BackendKind::Cuda,
            Vendor::Hip => BackendKind::Hip,
        };
        Ok(Self {
            kind,
            backend: backend.clone(),
            sim: None,
            real: Some(backend),
        })
    }

    /// Which backend it is.
    #[must_use]
    pub fn kind(&self) -> BackendKind {
        self.kind
    }

    /// Its devices.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The simulator behind it, if it is simulated.
    #[must_use]
    pub fn sim(&self) -> Option<&Arc<SimBackend>> {
        self.sim.as_ref()
    }

    /// The driver behind it, if its devices are real.
    #[must_use]
    pub fn real_devices(&self) -> Option<&Arc<DriverBackend>> {
        self.real.as_ref()
    }

    /// The same machine in its first state: a new simulated one, or the same real one.
    ///
    /// # Errors
    /// As for opening it.
    pub fn fresh(&self) -> Result<Self, TargetError> {
        match &self.sim {
            Some(sim) => Self::simulated(sim.config().clone()),
            None => Ok(self.clone()),
        }
    }

    /// What answers, for the first line of every output.
    #[must_use]
    pub fn origin(&self) -> String {
        self.backend.origin()
    }
}
