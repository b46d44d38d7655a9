//! Modules, their functions, and launches of those that have a CPU reference.

use ds4_engine::backend::Backend;
use ds4_kernels::{Kernel, Launch, MAX_ARGUMENTS};

use crate::context::Current;
use crate::driver::Driver;
use crate::raw::{Arguments, Extra, Text};
use crate::status::{Outcome, Status};
use crate::stream::{Queue, in_order};
use crate::tables::{Function, Handle, Module};

/// The most threads of a block.
pub(crate) const MAX_BLOCK_THREADS: u32 = 1024;

/// Loads a module with these entry points into the current context.
pub(crate) fn load(current: &Current, entries: Vec<String>) -> Handle {
    let mut tables = current.driver.tables();
    let handle = tables.handle();
    let module = Module {
        context: current.context,
        entries,
    };
    tables.modules.insert(handle, module);
    handle
}

/// Unloads a module; its functions are none any more.
pub(crate) fn unload(driver: &Driver, handle: Handle) -> Outcome {
    let mut tables = driver.tables();
    tables
        .modules
        .remove(&handle)
        .ok_or(Status::INVALID_HANDLE)?;
    tables
        .functions
        .retain(|_, function| function.module != handle);
    Ok(())
}

/// A function of a module by name: the same handle each time.
pub(crate) fn function(driver: &Driver, module: Handle, name: Text) -> Result<Handle, Status> {
    let name = name.get()?;
    let mut tables = driver.tables();
    let loaded = tables.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
    if !loaded.entries.iter().any(|entry| entry == name) {
        return Err(Status::NOT_FOUND);
    }
    let context = loaded.context;
    let mut known = tables.functions.iter();
    if let Some((handle, _)) = known.find(|(_, one)| one.module == module && one.entry == name) {
        return Ok(*handle);
    }
    let function = Function {
        module,
        context,
        entry: name.to_owned(),
    };
    let handle = tables.handle();
    tables.functions.insert(handle, function);
    Ok(handle)
}

/// Launches a kernel in order of a stream of its module's context.
pub(crate) fn launch(
    driver: &Driver,
    function: Handle,
    (grid, block): ([u32; 3], [u32; 3]),
    queue: Queue,
    (arguments, extra): (Arguments, Extra),
) -> Outcome {
    let known = driver.tables().functions.get(&function).cloned();
    let function = known.ok_or(Status::INVALID_HANDLE)?;
    if function.context != queue.context {
        return Err(Status::INVALID_HANDLE);
    }
    let threads = block
        .iter()
        .try_fold(1_u32, |product, side| product.checked_mul(*side));
    let fits = threads.is_some_and(|threads| (1..=MAX_BLOCK_THREADS).contains(&threads));
    if !fits || grid.contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    let kernel = Kernel::from_entry(&function.entry).ok_or(Status::NOT_SUPPORTED)?;
    let words = words(kernel.arguments(), arguments, extra)?;
    let launch = Launch::unpack(kernel, &words).ok_or(Status::INVALID_VALUE)?;
    in_order(driver, queue, queue.device, |stream| {
        driver.sim.launch(queue.device, stream, &launch)
    })
}

/// The first `count` arguments, from whichever of the two forms is given.
fn words(count: usize, arguments: Arguments, extra: Extra) -> Result<[u64; MAX_ARGUMENTS], Status> {
    let mut words = [0; MAX_ARGUMENTS];
    if arguments.is_null() == extra.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if !extra.is_null() {
        let buffer = extra.buffer()?;
        for (index, word) in words.iter_mut().take(count).enumerate() {
            let bytes = buffer
                .get(8 * index..8 * index + 8)
                .ok_or(Status::INVALID_VALUE)?;
            *word = u64::from_ne_bytes(bytes.try_into().map_err(|_| Status::INVALID_VALUE)?);
        }
        return Ok(words);
    }
    for (index, word) in words.iter_mut().take(count).enumerate() {
        *word = arguments.word(index)?;
    }
    Ok(words)
}
