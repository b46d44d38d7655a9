//! Contexts as CUDA has them: a stack of current ones for each thread, a primary one for each device
//! that is held and released, and others.

use std::cell::RefCell;
use std::sync::Arc;

use ds4_engine::device::DeviceId;

use crate::context::{Current, clear};
use crate::driver::Driver;
use crate::status::{Outcome, Status};
use crate::tables::{Context, Handle};

thread_local! {
    /// The current context is the last.
    static STACK: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

impl Current {
    /// The thread's current context, if it has one that lives.
    pub(crate) fn get() -> Result<Self, Status> {
        let driver = Driver::get()?;
        let context = top().ok_or(Status::INVALID_CONTEXT)?;
        Self::of(driver, context)
    }

    /// A context that somebody holds.
    pub(crate) fn of(driver: Arc<Driver>, context: Handle) -> Result<Self, Status> {
        let device = driver.tables().context(context)?.device;
        Ok(Self {
            driver,
            context,
            device,
        })
    }
}

/// The thread's current context.
pub(crate) fn top() -> Option<Handle> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// Makes a context current in place of the one before.
pub(crate) fn set_top(context: Handle) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if !context.is_null() {
            stack.push(context);
        }
    });
}

pub(crate) fn push(context: Handle) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop() -> Option<Handle> {
    STACK.with_borrow_mut(Vec::pop)
}

/// Takes one more hold of a device's primary context.
pub(crate) fn retain_primary(driver: &Driver, device: DeviceId) -> Result<Handle, Status> {
    let mut tables = driver.tables();
    let handle = tables.primary(device)?;
    if let Some(context) = tables.contexts.get_mut(&handle) {
        context.references += 1;
    }
    Ok(handle)
}

/// Gives up one hold of it; with the last one its resources go.
pub(crate) fn release_primary(driver: &Driver, device: DeviceId) -> Outcome {
    let mut tables = driver.tables();
    let handle = tables.primary(device)?;
    let Some(context) = tables.contexts.get_mut(&handle) else {
        return Err(Status::INVALID_CONTEXT);
    };
    context.references = context
        .references
        .checked_sub(1)
        .ok_or(Status::INVALID_CONTEXT)?;
    let last = context.references == 0;
    drop(tables);
    if last {
        clear(driver, handle);
    }
    Ok(())
}

/// Makes a context of its own on a device and makes it current.
pub(crate) fn create(driver: &Driver, device: DeviceId, flags: u32) -> Handle {
    let mut tables = driver.tables();
    let handle = tables.handle();
    let context = Context {
        flags,
        ..Context::new(device, false)
    };
    tables.contexts.insert(handle, context);
    drop(tables);
    push(handle);
    handle
}

/// Destroys a context that was created.
pub(crate) fn destroy(driver: &Driver, handle: Handle) -> Outcome {
    if driver.tables().context(handle)?.primary {
        return Err(Status::INVALID_CONTEXT);
    }
    clear(driver, handle);
    driver.tables().contexts.remove(&handle);
    if top() == Some(handle) {
        pop();
    }
    Ok(())
}
