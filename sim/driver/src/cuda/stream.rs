//! Streams and events.

use super::number;
use crate::call::export;
use crate::context::Current;
use crate::driver::Driver;
use crate::event;
use crate::raw::{HostFunction, Opaque, Out};
use crate::status::{Outcome, Status};
use crate::stream::{self, Queue};
use crate::tables::Handle;

fn queue(handle: Handle) -> Result<(Current, Queue), Status> {
    let current = Current::get()?;
    let queue = Queue::of(&current, handle)?;
    Ok((current, queue))
}

fn create(out: Out<Handle>, flags: u32, priority: i32) -> Outcome {
    let current = Current::get()?;
    out.make(|| stream::create(&current, flags, priority))
}

export! {
    fn cuStreamCreate(out: Out<Handle>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<Handle>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2(handle: Handle) {
        stream::destroy(&*Driver::get()?, handle)
    }

    fn cuStreamSynchronize(handle: Handle) {
        let (current, queue) = queue(handle)?;
        stream::synchronize(&current.driver, queue)
    }

    fn cuStreamQuery(handle: Handle) {
        let (current, queue) = queue(handle)?;
        stream::query(&current.driver, queue)
    }

    fn cuStreamWaitEvent(handle: Handle, event: Handle, _flags: u32) {
        let (current, queue) = queue(handle)?;
        event::hold_stream(&current.driver, queue, event)
    }

    fn cuStreamGetFlags(handle: Handle, flags: Out<u32>) {
        queue(handle)?;
        flags.put(stream::find(&*Driver::get()?, handle).map_or(0, |stream| stream.flags))
    }

    fn cuStreamGetPriority(handle: Handle, priority: Out<i32>) {
        queue(handle)?;
        priority.put(stream::find(&*Driver::get()?, handle).map_or(0, |stream| stream.priority))
    }

    fn cuStreamGetCtx(handle: Handle, context: Out<Handle>) {
        context.put(queue(handle)?.1.context)
    }

    fn cuStreamGetDevice(handle: Handle, device: Out<i32>) {
        device.put(number(queue(handle)?.1.device))
    }

    fn cuStreamGetId(handle: Handle, id: Out<u64>) {
        queue(handle)?;
        id.put(handle.0)
    }

    fn cuStreamIsCapturing(handle: Handle, state: Out<u32>) {
        queue(handle)?;
        state.put(0)
    }

    // Everything before the function has taken effect, so its turn is now.
    fn cuLaunchHostFunc(
        handle: Handle,
        function: HostFunction<extern "C" fn(Opaque)>,
        data: Opaque,
    ) {
        queue(handle)?;
        function.call(data)
    }

    fn cuStreamAddCallback(
        handle: Handle,
        function: HostFunction<extern "C" fn(u64, u32, Opaque)>,
        data: Opaque,
        _flags: u32,
    ) {
        queue(handle)?;
        function.call(handle.0, data)
    }

    fn cuEventCreate(out: Out<Handle>, flags: u32) {
        let current = Current::get()?;
        out.make(|| event::create(&current, flags))
    }

    fn cuEventDestroy_v2(event: Handle) {
        event::destroy(&*Driver::get()?, event)
    }

    fn cuEventRecord(event: Handle, handle: Handle) {
        let (current, queue) = queue(handle)?;
        event::record(&current.driver, event, queue)
    }

    fn cuEventRecordWithFlags(event: Handle, handle: Handle, _flags: u32) {
        let (current, queue) = queue(handle)?;
        event::record(&current.driver, event, queue)
    }

    fn cuEventQuery(event: Handle) {
        event::query(&*Driver::get()?, event)
    }

    fn cuEventSynchronize(event: Handle) {
        event::synchronize(&*Driver::get()?, event)
    }

    fn cuEventElapsedTime(ms: Out<f32>, from: Handle, to: Handle) {
        ms.put(event::elapsed_ms(&*Driver::get()?, from, to)?)
    }

    fn cuEventElapsedTime_v2(ms: Out<f32>, from: Handle, to: Handle) {
        ms.put(event::elapsed_ms(&*Driver::get()?, from, to)?)
    }
}
