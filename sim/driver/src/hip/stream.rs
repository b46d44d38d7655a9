//! Streams and events.

use super::current;
use crate::call::export;
use crate::context::Current;
use crate::event;
use crate::raw::{HostFunction, Opaque, Out};
use crate::status::{Outcome, Status};
use crate::stream::{self, Queue};
use crate::tables::Handle;

fn queue(handle: Handle) -> Result<(Current, Queue), Status> {
    let current = current()?;
    let queue = Queue::of(&current, handle)?;
    Ok((current, queue))
}

fn create(out: Out<Handle>, flags: u32, priority: i32) -> Outcome {
    let current = current()?;
    out.make(|| stream::create(&current, flags, priority))
}

fn create_event(out: Out<Handle>, flags: u32) -> Outcome {
    let current = current()?;
    out.make(|| event::create(&current, flags))
}

export! {
    fn hipStreamCreate(out: Out<Handle>) {
        create(out, 0, 0)
    }

    fn hipStreamCreateWithFlags(out: Out<Handle>, flags: u32) {
        create(out, flags, 0)
    }

    fn hipStreamCreateWithPriority(out: Out<Handle>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn hipStreamDestroy(handle: Handle) {
        stream::destroy(&current()?.driver, handle)
    }

    fn hipStreamSynchronize(handle: Handle) {
        let (current, queue) = queue(handle)?;
        stream::synchronize(&current.driver, queue)
    }

    fn hipStreamQuery(handle: Handle) {
        let (current, queue) = queue(handle)?;
        stream::query(&current.driver, queue)
    }

    fn hipStreamWaitEvent(handle: Handle, event: Handle, _flags: u32) {
        let (current, queue) = queue(handle)?;
        event::hold_stream(&current.driver, queue, event)
    }

    fn hipStreamGetFlags(handle: Handle, flags: Out<u32>) {
        let (current, _) = queue(handle)?;
        flags.put(stream::find(&current.driver, handle).map_or(0, |stream| stream.flags))
    }

    fn hipStreamGetPriority(handle: Handle, priority: Out<i32>) {
        let (current, _) = queue(handle)?;
        priority.put(stream::find(&current.driver, handle).map_or(0, |stream| stream.priority))
    }

    // Everything before the function has taken effect, so its turn is now.
    fn hipLaunchHostFunc(
        handle: Handle,
        function: HostFunction<extern "C" fn(Opaque)>,
        data: Opaque,
    ) {
        queue(handle)?;
        function.call(data)
    }

    fn hipStreamAddCallback(
        handle: Handle,
        function: HostFunction<extern "C" fn(u64, u32, Opaque)>,
        data: Opaque,
        _flags: u32,
    ) {
        queue(handle)?;
        function.call(handle.0, data)
    }

    fn hipEventCreate(out: Out<Handle>) {
        create_event(out, 0)
    }

    fn hipEventCreateWithFlags(out: Out<Handle>, flags: u32) {
        create_event(out, flags)
    }

    fn hipEventDestroy(event: Handle) {
        event::destroy(&current()?.driver, event)
    }

    fn hipEventRecord(event: Handle, handle: Handle) {
        let (current, queue) = queue(handle)?;
        event::record(&current.driver, event, queue)
    }

    fn hipEventQuery(event: Handle) {
        event::query(&current()?.driver, event)
    }

    fn hipEventSynchronize(event: Handle) {
        event::synchronize(&current()?.driver, event)
    }

    fn hipEventElapsedTime(ms: Out<f32>, from: Handle, to: Handle) {
        ms.put(event::elapsed_ms(&current()?.driver, from, to)?)
    }
}
