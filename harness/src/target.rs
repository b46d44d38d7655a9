//! Opening the machine that a command runs on. A missing backend is an error, never a fallback.

use std::fmt;
use std::sync::Arc;

use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::{Driver, DriverBackend, OpenError, Vendor};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceInfo, DeviceMask, Ordinal};
use ds4_sim::{DeviceView, InputError, Instrumented, Instruments, SimBackend, SimConfig};

/// What the names of devices begin with behind a driver library that simulates them.
const SIMULATED: &str = "Simulated ";

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
    instruments: Option<Arc<dyn Instruments>>,
    real: Option<Arc<DriverBackend>>,
    source: Source,
}

/// Where the same machine in its first state comes from.
#[derive(Clone, Debug)]
enum Source {
    Sim(Arc<SimBackend>),
    /// Devices that last longer than a run, and what is shown of them.
    Lasting(Arc<dyn Backend>, Vec<DeviceView>),
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
            instruments: Some(sim.clone()),
            real: None,
            source: Source::Sim(sim),
        })
    }

    /// Real devices of a driver, by its own numbers and in this order; those in `excluded` are not
    /// opened.
    ///
    /// # Errors
    /// [`TargetError::Open`].
    pub fn real(
        driver: &Driver,
        ordinals: &[Ordinal],
        excluded: DeviceMask,
        force_bounce: bool,
    ) -> Result<Self, TargetError> {
        let backend = DriverBackend::open(driver, ordinals, excluded, force_bounce)?;
        let backend = Arc::new(backend);
        let kind = match backend.vendor() {
            Vendor::Cuda => BackendKind::Cuda,
            Vendor::Hip => BackendKind::Hip,
        };
        Ok(Self {
            real: Some(backend.clone()),
            ..Self::lasting(kind, backend)
        })
    }

    /// Devices that are open already and last longer than a run; no instruments are in their way
    /// until [`Target::instrumented`] asks for some.
    #[must_use]
    pub fn lasting(kind: BackendKind, backend: Arc<dyn Backend>) -> Self {
        let views = vec![DeviceView::WHOLE; backend.devices().len()];
        Self {
            kind,
            backend: Arc::clone(&backend),
            instruments: None,
            real: None,
            source: Source::Lasting(backend, views),
        }
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
        match &self.source {
            Source::Sim(sim) => Some(sim),
            Source::Lasting(..) => None,
        }
    }

    /// What counts its calls, makes them fail and watches what is held, if it was opened with it.
    #[must_use]
    pub fn instruments(&self) -> Option<&Arc<dyn Instruments>> {
        self.instruments.as_ref()
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
        match &self.source {
            Source::Sim(sim) => Self::simulated(sim.config().clone()),
            Source::Lasting(..) => Ok(self.clone()),
        }
    }

    /// As [`Target::fresh`], with instruments of its own.
    ///
    /// # Errors
    /// As for opening it.
    pub fn instrumented(&self) -> Result<Self, TargetError> {
        match &self.source {
            Source::Sim(_) => self.fresh(),
            Source::Lasting(inner, views) => Ok(self.showing(inner, views.clone())),
        }
    }

    /// As [`Target::instrumented`], with pages on all devices or on none; devices that cannot map
    /// pages stay without.
    ///
    /// # Errors
    /// As for opening it.
    pub fn with_paging(&self, pages: bool) -> Result<Self, TargetError> {
        match &self.source {
            Source::Sim(sim) => {
                let mut config = sim.config().clone();
                for device in &mut config.devices {
                    device.page_bytes = pages.then_some(2 * MIB);
                }
                Self::simulated(config)
            }
            Source::Lasting(inner, views) => {
                let shown = |view: &DeviceView| DeviceView { pages, ..*view };
                Ok(self.showing(inner, views.iter().map(shown).collect()))
            }
        }
    }

    /// The first devices of a machine that lasts, with instruments, one for each view.
    #[must_use]
    pub fn with_views(&self, views: Vec<DeviceView>) -> Option<Self> {
        match &self.source {
            Source::Sim(_) => None,
            Source::Lasting(inner, _) => Some(self.showing(inner, views)),
        }
    }

    fn showing(&self, inner: &Arc<dyn Backend>, views: Vec<DeviceView>) -> Self {
        let wrapped = Arc::new(Instrumented::with_views(Arc::clone(inner), views.clone()));
        Self {
            kind: self.kind,
            backend: wrapped.clone(),
            instruments: Some(wrapped),
            real: self.real.clone(),
            source: Source::Lasting(Arc::clone(inner), views),
        }
    }

    /// Whether its devices are simulated: by the simulator, or by a driver library in place of the
    /// real one, which marks the names of its devices.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        let marked = |device: &DeviceInfo| device.name.starts_with(SIMULATED);
        self.sim().is_some() || self.backend.devices().iter().any(marked)
    }

    /// What answers, for the first line of every output.
    #[must_use]
    pub fn origin(&self) -> String {
        self.backend.origin()
    }
}
