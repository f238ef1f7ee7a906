//! The thread that waits for what the driver tells by itself: XIDs and lost GPUs.
//!
//! Guarantees: every device that was read is waited for, also if it came later; an error backs off.

use std::time::Duration;

use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use tracing::{debug, warn};

use super::library::Library;
use super::raw;
use super::session::Session;

/// A wait that is this short keeps the end of the process short.
const WAIT_MS: u32 = 250;
/// Time until the next try after an error; it doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Waits for events until the session is over.
pub(super) fn wait(library: &Library, session: &Session) {
    if let Err(error) = library.can_free_event_sets() {
        debug!(%error, "no events from this driver");
        return;
    }
    let mut retry = RETRY.0;
    while session.over().is_none() {
        match wait_for_these(library, session) {
            Ok(()) => retry = RETRY.0,
            Err(error) => {
                debug!(%error, "no events for now");
                if !session.sleep(retry) {
                    return;
                }
                retry = (retry * 2).min(RETRY.1);
            }
        }
    }
}

/// Waits for events of the devices that are there now; returns when there are others.
fn wait_for_these(library: &Library, session: &Session) -> Result<(), NvmlError> {
    let devices = devices(session);
    if devices.is_empty() {
        session.sleep(Duration::from_millis(WAIT_MS.into()));
        return Ok(());
    }
    let set = registered(library, &devices)?;
    while session.over().is_none() && self::devices(session) == devices {
        match set.wait(WAIT_MS) {
            Ok(event) => {
                if let Some(xid) = event.event_data {
                    note(session, raw::handle(&event.device), &xid);
                }
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Index and handle of every device that answers.
fn devices(session: &Session) -> Vec<(u32, usize)> {
    let answering = (0..).zip(&session.lanes).filter_map(|(index, lane)| {
        let lane = lane.lock();
        (lane.read.is_some() && lane.handle != 0).then_some((index, lane.handle))
    });
    answering.collect()
}

/// A set with every device that has such events.
fn registered<'nvml>(
    library: &'nvml Library,
    devices: &[(u32, usize)],
) -> Result<EventSet<'nvml>, NvmlError> {
    let mut able: Vec<u32> = devices.iter().map(|(index, _)| *index).collect();
    'again: loop {
        let mut set = library.create_event_set()?;
        for (place, index) in able.iter().enumerate() {
            let device = library.device_by_index(*index)?;
            let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
            let kinds = device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
            match device.register_events(kinds, set) {
                Ok(with_device) => set = with_device,
                // The wrapper freed the set.
                Err(error) => {
                    debug!(index, %error, "no events of this GPU");
                    able.remove(place);
                    continue 'again;
                }
            }
        }
        return Ok(set);
    }
}

fn note(session: &Session, handle: usize, xid: &XidError) {
    let xid = match xid {
        XidError::Value(xid) => *xid,
        XidError::Unknown => 999,
    };
    for (index, lane) in session.lanes.iter().enumerate() {
        let mut lane = lane.lock();
        if lane.handle == handle {
            warn!(index, xid, "the driver reported an XID");
            lane.xid = Some((xid, session.clock.now()));
        }
    }
}
