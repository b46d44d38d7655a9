//! Loading the kernels of [`ds4_kernels`] and running them.

use std::ffi::CString;
use std::sync::Arc;

use ds4_kernels::{Kernel, Launch};

use crate::backend::BackendError;
use crate::device::StreamId;

use super::Vendor;
use super::context::Context;
use super::device::{Device, raw};
use super::load::Driver;
use super::table::{LaunchAttribute, LaunchConfig, RawHandle, Status};

/// The kernels in one device's memory.
#[derive(Debug)]
pub(super) struct Module {
    raw: RawHandle,
    driver: Driver,
    context: Arc<Context>,
    functions: [RawHandle; Kernel::ALL.len()],
    /// Whether kernels that wait for their predecessor themselves may be launched before its end.
    early: bool,
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the module is live and nothing of it is used any more; a lost context
            // refuses.
            let _ = unsafe { self.driver.functions.module_unload(self.raw) };
        }
    }
}

impl Device {
    pub(super) fn launch(&self, stream: StreamId, launch: &Launch) -> Result<(), BackendError> {
        let stream = self.stream(stream)?;
        if launch.elements() == 0 {
            return Ok(());
        }
        let kernel = launch.kernel();
        let module = self.module()?;
        let position = Kernel::ALL.iter().position(|other| *other == kernel);
        let function = position.and_then(|position| module.functions.get(position).copied());
        let function = function.ok_or_else(|| self.unknown(format!("no kernel {kernel:?}")))?;
        let arguments = launch.pack();
        let pointers = arguments.each_ref().map(std::ptr::from_ref);
        let (blocks, threads) = ds4_kernels::geometry(launch);
        let early = [LaunchAttribute::EARLY];
        if launch.is_gate() && module.early {
            let config = LaunchConfig::new(blocks, threads, raw(&stream), &early);
            // SAFETY: as below; the kernel itself waits for what is before it in the stream.
            return self.with(0, || unsafe {
                let functions = &self.driver.functions;
                functions.launch_extended(&raw const config, function, pointers.as_ptr(), 0)
            });
        }
        // SAFETY: the kernel takes the first of these six arguments, 8 bytes each, which live
        // until the driver has copied them; its addresses are of this backend (see `Backend`).
        self.with(0, || unsafe {
            self.driver.functions.launch(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                raw(&stream),
                pointers.as_ptr(),
                0,
            )
        })
    }

    /// The kernels, loaded now if they are not yet; a failure is forgotten.
    fn module(&self) -> Result<&Module, BackendError> {
        if let Some(module) = self.module.get() {
            return Ok(module);
        }
        let loaded = self.load_module()?;
        Ok(self.module.get_or_init(|| loaded))
    }

    fn load_module(&self) -> Result<Module, BackendError> {
        let mut refused = None;
        for (image, early) in images(self.driver.vendor) {
            let early = early && self.driver.functions.can_launch_extended();
            match self.with(0, || self.load(&image, early)) {
                Ok(module) => return Ok(module),
                Err(error @ BackendError::DeviceLost { .. }) => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or(BackendError::Unsupported {
            device: self.id,
            call: "module load",
        }))
    }

    /// The device is the thread's already.
    fn load(&self, image: &[u8], early: bool) -> Result<Module, Status> {
        let (driver, context) = (&self.driver.functions, Arc::clone(self.context()?));
        let mut raw = 0;
        // SAFETY: PTX ends with a NUL, a code object says its own length.
        unsafe { driver.module_load(&raw mut raw, image.as_ptr()) }?;
        let mut module = Module {
            raw,
            driver: self.driver.clone(),
            context,
            functions: [0; Kernel::ALL.len()],
            early,
        };
        for (function, kernel) in module.functions.iter_mut().zip(Kernel::ALL) {
            let entry = CString::new(kernel.entry()).unwrap_or_default();
            // SAFETY: the module was loaded above, and the name ends with a NUL.
            unsafe { driver.module_function(function, raw, entry.as_ptr()) }?;
        }
        Ok(module)
    }
}

/// What may be loaded, in the order in which to try: PTX fits every NVIDIA device, a code object
/// one architecture, which HIP names only in a structure whose layout depends on its version.
/// True beside those whose gates can start early and wait for the work before them themselves.
fn images(vendor: Vendor) -> Vec<(Vec<u8>, bool)> {
    match vendor {
        // The first text is for the devices that can.
        Vendor::Cuda => ds4_kernels::PTX
            .into_iter()
            .enumerate()
            .map(|(position, text)| ([text.as_bytes(), &[0]].concat(), position == 0))
            .collect(),
        Vendor::Hip => ds4_kernels::CODE_OBJECTS
            .iter()
            .map(|(_, object)| (object.to_vec(), false))
            .collect(),
    }
}
