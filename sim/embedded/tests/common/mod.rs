//! Loading a library as a C program would, each test its own copy: a copy is a driver of its own.

#[allow(
    clippy::allow_attributes,
    dead_code,
    reason = "each file of tests calls its own part"
)]
mod loaded;

use ds4_embedded::Interface;

pub(crate) use loaded::Loaded;

/// Loads a fresh copy of a library.
pub(crate) fn load(interface: Interface) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let path = interface.write_to(folder.path()).unwrap();
    Loaded::open(&path).unwrap()
}

/// Declares the functions that a file's tests call, as methods of a struct.
#[macro_export]
macro_rules! api {
    ($api:ident: $($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[expect(non_snake_case, reason = "C's names")]
        struct $api {
            driver: $crate::common::Loaded,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        #[expect(non_snake_case, reason = "C's names")]
        #[allow(clippy::allow_attributes, clippy::too_many_arguments, reason = "C's functions")]
        impl $api {
            fn load(interface: ds4_embedded::Interface) -> Self {
                let driver = $crate::common::load(interface);
                Self {
                    // SAFETY: the types are those of the interface's header.
                    $($name: unsafe { driver.function(stringify!($name)) }.unwrap(),)*
                    driver,
                }
            }

            $(fn $name(&self, $($argument: $type),*) -> u32 {
                // SAFETY: tests pass references, and pointers to live data of the size they say.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}
