//! Modules, functions and launches.

use super::current;
use crate::call::export;
use crate::image;
use crate::launch;
use crate::raw::{Arguments, Extra, Image, In, Out, Text};
use crate::status::Outcome;
use crate::stream::Queue;
use crate::tables::Handle;

fn load(out: Out<Handle>, image: Image) -> Outcome {
    let current = current()?;
    out.make(|| Ok(launch::load(&current, image::code_object_entries(image)?)))
}

export! {
    fn hipModuleLoadData(out: Out<Handle>, image: Image) {
        load(out, image)
    }

    fn hipModuleLoadDataEx(
        out: Out<Handle>,
        image: Image,
        _count: u32,
        _options: In<u32>,
        _values: In<u64>,
    ) {
        load(out, image)
    }

    fn hipModuleUnload(module: Handle) {
        launch::unload(&current()?.driver, module)
    }

    fn hipModuleGetFunction(out: Out<Handle>, module: Handle, name: Text) {
        out.make(|| launch::function(&current()?.driver, module, name))
    }

    fn hipModuleLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: Handle,
        arguments: Arguments,
        extra: Extra,
    ) {
        let current = current()?;
        let queue = Queue::of(&current, stream)?;
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch::launch(&current.driver, function, shape, queue, (arguments, extra))
    }
}
