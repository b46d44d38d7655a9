//! The caller's memory: the only place that reads or writes through pointers from outside.
//!
//! Each type here is what one kind of C parameter is taken as. No code of this crate makes a value
//! of these types, except for parts of one that came from a caller; so behind each stands what the
//! interfaces demand of their callers: **a pointer that is not null is valid for what the function
//! is documented to read or write there, until it returns.** That is the fact which the SAFETY
//! comments call "the caller's promise". Null is checked, as drivers do.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use crate::status::{Outcome, Status};

/// Device addresses are not the host's to touch: from here on no user process has any.
const HOST_END: u64 = 1 << 47;

/// Where a function writes one value.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T: Copy>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes the value; null is an invalid value.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for writing one T by the caller's promise.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes what `make` makes; null is an invalid value, and nothing is made.
    pub(crate) fn make(self, make: impl FnOnce() -> Result<T, Status>) -> Outcome {
        if self.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        self.put(make()?)
    }

    /// Writes the value unless the caller does not want it.
    pub(crate) fn offer(self, value: T) {
        let _ = self.put(value);
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer as another kind of place, for attributes whose type depends on their number.
    #[cfg(feature = "cuda")]
    pub(crate) fn cast<U: Copy>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Where a function reads values.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T: Copy>(*const T);

impl<T: Copy> In<T> {
    /// The value; null is an invalid value.
    pub(crate) fn get(self) -> Result<T, Status> {
        self.at(0)
    }

    /// The value at `index` of an array.
    pub(crate) fn at(self, index: usize) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the array has this element by the caller's promise.
        let place = unsafe { self.0.add(index) };
        // SAFETY: valid for reading one T by the caller's promise.
        Ok(unsafe { place.read_unaligned() })
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; null and what is not UTF-8 are invalid values.
    pub(crate) fn get<'a>(self) -> Result<&'a str, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so a string with its NUL by the caller's promise.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Status::INVALID_VALUE)
    }
}

/// Room for a C string of a given length.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes as much of the text as `room` bytes hold, and a NUL.
    pub(crate) fn put(self, text: &str, room: usize) -> Outcome {
        if self.0.is_null() || room == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let length = text.len().min(room - 1);
        // SAFETY: valid for writing `room` bytes by the caller's promise; the source is a string of
        // ours, which nothing of the caller's overlaps.
        unsafe { text.as_ptr().copy_to_nonoverlapping(self.0.cast(), length) };
        // SAFETY: `length` is below `room`.
        let end = unsafe { self.0.add(length) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Ok(())
    }
}

/// An address that may be the host's or a device's.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u64);

/// Memory of the host.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Host(*mut c_void);

impl Host {
    /// The memory at an address that the caller says is the host's.
    pub(crate) fn at(address: Address) -> Self {
        Self(address.0 as *mut c_void)
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    fn check(self, bytes: usize) -> Outcome {
        let end = self.address().checked_add(bytes as u64);
        let fits = end.is_some_and(|end| end <= HOST_END) && isize::try_from(bytes).is_ok();
        if self.0.is_null() || !fits {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }

    /// The bytes there, to read.
    pub(crate) fn bytes<'a>(self, bytes: usize) -> Result<&'a [u8], Status> {
        self.check(bytes)?;
        // SAFETY: checked to be a range of the host's, and valid for reading by the caller's
        // promise.
        Ok(unsafe { slice::from_raw_parts(self.0.cast(), bytes) })
    }

    /// The bytes there, to write.
    pub(crate) fn bytes_mut<'a>(self, bytes: usize) -> Result<&'a mut [u8], Status> {
        self.check(bytes)?;
        // SAFETY: checked to be a range of the host's, and valid for writing, by nobody else at
        // the same time, by the caller's promise.
        Ok(unsafe { slice::from_raw_parts_mut(self.0.cast(), bytes) })
    }

    /// A copy within the host's memory; the ranges may overlap.
    pub(crate) fn copy_to(self, to: Self, bytes: usize) -> Outcome {
        self.check(bytes)?;
        to.check(bytes)?;
        // SAFETY: both are ranges of the host's, valid by the caller's promise.
        unsafe { self.0.cast::<u8>().copy_to(to.0.cast(), bytes) };
        Ok(())
    }
}

/// A module image of unknown length.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Image(*const u8);

impl Image {
    /// `bytes` bytes from `offset` on, which what was read before says are there.
    pub(crate) fn part<'a>(self, offset: usize, bytes: usize) -> Option<&'a [u8]> {
        const MOST: usize = 1 << 28;
        if self.0.is_null() || offset > MOST || bytes > MOST {
            return None;
        }
        // SAFETY: the image reaches that far by the caller's promise that it is well formed.
        let start = unsafe { self.0.add(offset) };
        // SAFETY: as above.
        Some(unsafe { slice::from_raw_parts(start, bytes) })
    }

    /// Whether it begins with these bytes; it is read no further than to the first difference.
    pub(crate) fn begins_with(self, magic: &[u8]) -> bool {
        let byte_is = |(index, byte)| self.part(index, 1) == Some(slice::from_ref(byte));
        magic.iter().enumerate().all(byte_is)
    }

    /// The image as text.
    #[cfg(feature = "cuda")]
    pub(crate) fn text<'a>(self) -> Result<&'a str, Status> {
        Text(self.0.cast()).get()
    }
}

/// The arguments of a launch: an array of pointers to them.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Arguments(*const *const u64);

impl Arguments {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The argument of 8 bytes at `index`.
    pub(crate) fn word(self, index: usize) -> Result<u64, Status> {
        In(In(self.0).at(index)?).get()
    }
}

/// A launch's arguments in one buffer, as pairs of a tag and a value, ended by a tag.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Extra(*const *const c_void);

impl Extra {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The buffer.
    pub(crate) fn buffer<'a>(self) -> Result<&'a [u8], Status> {
        const POINTER: usize = 1;
        const SIZE: usize = 2;
        /// CUDA's and HIP's.
        const ENDS: [usize; 2] = [0, 3];
        let (mut buffer, mut size) = (Host(std::ptr::null_mut()), 0);
        for pair in 0..2 {
            // The tag first: behind the one that ends the array there is nothing to read.
            let tag = In(self.0).at(2 * pair)? as usize;
            if ENDS.contains(&tag) {
                break;
            }
            let value = In(self.0).at(2 * pair + 1)?;
            match tag {
                POINTER => buffer = Host(value.cast_mut()),
                SIZE => size = In(value.cast::<usize>()).get()?,
                _ => return Err(Status::INVALID_VALUE),
            }
        }
        buffer.bytes(size)
    }
}

/// Values that a function passes on without looking, for the caller's own functions.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Opaque(*mut c_void);

/// A function of the caller's.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct HostFunction<F: Copy>(Option<F>);

impl HostFunction<extern "C" fn(Opaque)> {
    /// Calls it.
    pub(crate) fn call(self, data: Opaque) -> Outcome {
        self.0.ok_or(Status::INVALID_VALUE)?(data);
        Ok(())
    }
}

impl HostFunction<extern "C" fn(u64, u32, Opaque)> {
    /// Calls it with the stream and success.
    pub(crate) fn call(self, stream: u64, data: Opaque) -> Outcome {
        self.0.ok_or(Status::INVALID_VALUE)?(stream, 0, data);
        Ok(())
    }
}
