//! Modules, functions and launches.

use crate::call::export;
use crate::context::Current;
use crate::driver::Driver;
use crate::image;
use crate::launch;
use crate::raw::{Arguments, Extra, Image, In, Out, Text};
use crate::status::{Outcome, Status};
use crate::stream::Queue;
use crate::tables::Handle;

fn load(out: Out<Handle>, image: Image) -> Outcome {
    let current = Current::get()?;
    out.make(|| Ok(launch::load(&current, image::ptx_entries(image)?)))
}

export! {
    fn cuModuleLoadData(out: Out<Handle>, image: Image) {
        load(out, image)
    }

    fn cuModuleLoadDataEx(
        out: Out<Handle>,
        image: Image,
        _count: u32,
        _options: In<u32>,
        _values: In<u64>,
    ) {
        load(out, image)
    }

    fn cuModuleUnload(module: Handle) {
        launch::unload(&*Driver::get()?, module)
    }

    fn cuModuleGetFunction(out: Out<Handle>, module: Handle, name: Text) {
        out.make(|| launch::function(&*Driver::get()?, module, name))
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, _function: Handle) {
        const MAX_THREADS: u32 = 0;
        const REGISTERS: u32 = 4;
        value.put(match attribute {
            MAX_THREADS => 1024,
            REGISTERS => 32,
            _ => 0,
        })
    }

    fn cuFuncSetAttribute(_function: Handle, _attribute: u32, _value: i32) {
        Driver::get().map(|_| ())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>,
        _function: Handle,
        threads: i32,
        _shared_bytes: usize,
    ) {
        const THREADS: i32 = 2048;
        let most = THREADS.checked_div(threads).filter(|blocks| *blocks >= 0);
        blocks.put(most.ok_or(Status::INVALID_VALUE)?.min(32))
    }

    fn cuLaunchKernel(
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
        let current = Current::get()?;
        let queue = Queue::of(&current, stream)?;
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch::launch(&current.driver, function, shape, queue, (arguments, extra))
    }
}
