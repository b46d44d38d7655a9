//! Raising a C++ exception in a program that is written in C++.
//!
//! PyTorch takes whatever a plugged-in allocator returns for memory, NULL too: an operation on
//! such a tensor is an invalid access on the device, after which the process cannot go on. What
//! it understands is an exception. A `std::runtime_error` becomes Python's `RuntimeError`.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use libloading::os::unix::Library;

/// Room for a `std::runtime_error`, which is two pointers.
const EXCEPTION_BYTES: usize = 64;

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Construct = unsafe extern "C" fn(*mut c_void, *const c_char);
type Destroy = unsafe extern "C" fn(*mut c_void);
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Destroy) -> !;

/// What it takes from the C++ runtime of the process.
struct Runtime {
    allocate: Allocate,
    construct: Construct,
    destroy: Destroy,
    throw: Throw,
    /// The address of the type's description.
    kind: usize,
}

/// Throws `std::runtime_error(message)`; returns only where the process has no C++ runtime.
#[cold]
pub(crate) fn throw(message: CString) {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let Some(runtime) = RUNTIME.get_or_init(Runtime::find) else {
        return;
    };
    // SAFETY: the function has no preconditions; it ends the process rather than return null.
    let exception = unsafe { (runtime.allocate)(EXCEPTION_BYTES) };
    // SAFETY: the place is large enough and aligned, and the message, which is copied, is valid.
    unsafe { (runtime.construct)(exception, message.as_ptr()) };
    // SAFETY: the exception is constructed, of this type and with this destructor. It may pass every
    // frame from here to the caller's: both ways out are "C-unwind", and what the frames between
    // hold is dropped as it passes.
    unsafe {
        (runtime.throw)(
            exception,
            std::ptr::without_provenance(runtime.kind),
            runtime.destroy,
        )
    }
}

#[cfg(not(target_os = "linux"))]
impl Runtime {
    /// Which library holds the runtime is known on Linux only, where PyTorch has GPUs.
    fn find() -> Option<Self> {
        None
    }
}

#[cfg(target_os = "linux")]
impl Runtime {
    /// The runtime that is loaded already; none is loaded for this.
    fn find() -> Option<Self> {
        const RTLD_NOW: i32 = 2;
        const RTLD_NOLOAD: i32 = 4;
        const NAME: &str = "libstdc++.so.6";
        // SAFETY: it is loaded already, so that no initialiser runs.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_NOLOAD) }.ok()?;
        // SAFETY: the C++ ABI gives each of these names this signature.
        let runtime = unsafe { Self::of(&library) };
        // It stays loaded: what was found in it is kept for good.
        std::mem::forget(library);
        runtime
    }

    /// # Safety
    /// The library is a C++ runtime of the Itanium ABI.
    unsafe fn of(library: &Library) -> Option<Self> {
        // SAFETY: the caller vouches for the signature, here and below.
        let allocate = unsafe { library.get::<Allocate>(b"__cxa_allocate_exception\0") };
        // SAFETY: as above.
        let construct = unsafe { library.get::<Construct>(b"_ZNSt13runtime_errorC1EPKc\0") };
        // SAFETY: as above.
        let destroy = unsafe { library.get::<Destroy>(b"_ZNSt13runtime_errorD1Ev\0") };
        // SAFETY: as above.
        let throw = unsafe { library.get::<Throw>(b"__cxa_throw\0") };
        // SAFETY: only its address is used.
        let kind = unsafe { library.get::<*const c_void>(b"_ZTISt13runtime_error\0") };
        Some(Self {
            allocate: *allocate.ok()?,
            construct: *construct.ok()?,
            destroy: *destroy.ok()?,
            throw: *throw.ok()?,
            kind: kind.ok()?.into_raw().addr(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_cxx_runtime_gets_no_exception() {
        // Rust links none, and none is loaded for the purpose.
        throw(c"nobody".to_owned());
    }
}
