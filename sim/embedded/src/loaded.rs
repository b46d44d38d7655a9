//! A simulated driver loaded into this process: what tests call, and how they set its machine.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use libloading::Library;

/// A loaded library. It stays loaded to the end of the process, as a driver does.
#[derive(Debug)]
pub struct Loaded {
    library: &'static Library,
}

/// Longer reports are cut.
const REPORT_BYTES: usize = 1 << 20;

type OfText = unsafe extern "C" fn(*const c_char) -> u32;
type Report = unsafe extern "C" fn(*mut c_char, usize) -> u32;
type Findings = unsafe extern "C" fn(*mut c_char, usize, *mut u64, u32) -> u32;
type StateHash = unsafe extern "C" fn(*mut u64) -> u32;

impl Loaded {
    /// Loads a file that [`crate::Interface::write_to`] wrote. Programs that then look for the
    /// driver by its soname, without a folder, get this one.
    ///
    /// # Errors
    /// Of the system's loader, in its words.
    pub fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the library is ours: it has no initialisers that do anything.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        Ok(Self {
            library: Box::leak(Box::new(library)),
        })
    }

    /// A function of the library.
    ///
    /// # Errors
    /// If there is none of this name.
    ///
    /// # Safety
    /// `F` must be the type of the function.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: the caller upholds that F is the function's type.
        let found = unsafe { self.library.get::<F>(name.as_bytes()) };
        found
            .map(|function| *function)
            .map_err(|error| error.to_string())
    }

    /// Starts a new machine, described by lines of `NAME=VALUE` with the names of the environment's
    /// variables: `DS4_FAKE_GPUS=24G,24G`. What was held of the machine before is gone.
    ///
    /// # Errors
    /// The driver's code: 100 for no devices, 999 for a description that is wrong.
    pub fn configure(&self, text: &str) -> Result<(), u32> {
        self.pass("ds4_simulated_configure", text)
    }

    /// Starts a plan of faults, as JSON; an empty text ends it.
    ///
    /// # Errors
    /// The driver's code: 1 for a plan that is wrong, 3 before there is a machine.
    pub fn set_faults(&self, json: &str) -> Result<(), u32> {
        self.pass("ds4_simulated_set_faults", json)
    }

    /// A line `ENTRY KIND FIRED MATCHED` for each fault of the plan.
    ///
    /// # Errors
    /// The driver's code: 3 before there is a machine.
    pub fn fault_report(&self) -> Result<String, u32> {
        let report = self.own::<Report>("ds4_simulated_fault_report")?;
        let mut text = vec![0_u8; REPORT_BYTES];
        // SAFETY: the text has as many bytes as is said.
        answer(unsafe { report(text.as_mut_ptr().cast(), text.len()) })?;
        Ok(until_nul(&text))
    }

    /// Takes the ledger's findings, one a line; with `shutdown`, what is still held is one.
    ///
    /// # Errors
    /// The driver's code: 3 before there is a machine.
    pub fn findings(&self, shutdown: bool) -> Result<Vec<String>, u32> {
        let findings = self.own::<Findings>("ds4_simulated_findings")?;
        let mut text = vec![0_u8; REPORT_BYTES];
        let mut count = 0;
        let (room, shutdown) = (text.len(), u32::from(shutdown));
        // SAFETY: the text has as many bytes as is said, and the count is a place of ours.
        answer(unsafe { findings(text.as_mut_ptr().cast(), room, &raw mut count, shutdown) })?;
        Ok(until_nul(&text).lines().map(str::to_owned).collect())
    }

    /// A hash of every device's accounting: equal before and after a call that was refused.
    ///
    /// # Errors
    /// The driver's code: 3 before there is a machine.
    pub fn state_hash(&self) -> Result<u64, u32> {
        let hash = self.own::<StateHash>("ds4_simulated_state_hash")?;
        let mut value = 0;
        // SAFETY: the value is a place of ours.
        answer(unsafe { hash(&raw mut value) })?;
        Ok(value)
    }

    fn pass(&self, name: &str, text: &str) -> Result<(), u32> {
        const INVALID_VALUE: u32 = 1;
        let text = CString::new(text).map_err(|_| INVALID_VALUE)?;
        let function = self.own::<OfText>(name)?;
        // SAFETY: the text is a string with its NUL.
        answer(unsafe { function(text.as_ptr()) })
    }

    /// A function that only our libraries have.
    fn own<F: Copy>(&self, name: &str) -> Result<F, u32> {
        const NOT_FOUND: u32 = 500;
        // SAFETY: `sim/driver/src/control.rs` defines these names with the types above.
        unsafe { self.function(name) }.map_err(|_| NOT_FOUND)
    }
}

fn answer(code: u32) -> Result<(), u32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn until_nul(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
