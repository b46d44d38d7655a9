//! Functions of libraries that are found at run time.

/// A structure of functions that a library must have, all of them, and `load`, which looks each up
/// by its symbol and otherwise names those that are missing.
///
/// The module that uses it answers for the signatures: they are those of the library's header.
macro_rules! functions {
    ($($name:ident($($type:ty),*) $(-> $result:ty)? = $symbol:literal;)*) => {
        /// Every function of the library that ds4 calls by name.
        #[derive(Debug)]
        struct Functions { $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)* }

        impl Functions {
            /// Looks every function up; the names of those that are missing otherwise.
            fn load(library: &'static libloading::Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the list says what the library's header gives this name.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>($symbol)
                    };
                    let $name = found.ok().map(|found| *found);
                    if $name.is_none() {
                        missing.push($symbol);
                    }
                )*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Self { $($name,)* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

pub(crate) use functions;
