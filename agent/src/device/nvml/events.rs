//! The thread that waits for what the driver tells by itself: XIDs and lost GPUs.
//!
//! Guarantees: every device that answers is waited for, also if it came later; one that hangs costs
//! the others nothing; an error backs off.

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
/// A device that answers nothing for this long is not asked for its events.
const SILENCE: Duration = Duration::from_millis(500);
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
    let (set, asked) = registered(library, session, devices)?;
    // One that falls silent stays: it costs nothing, and its handle may be in an event.
    while session.over().is_none() && self::devices(session).iter().all(|it| asked.contains(it)) {
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
fn devices(session: &Session) -> Devices {
    let answering = (0..).zip(session.lanes.iter().enumerate());
    let answering = answering.filter_map(|(number, (index, lane))| {
        let lane = lane.lock();
        let is_read = lane.read.is_some() && lane.handle != 0 && lane.failure.is_none();
        (is_read && !is_silent(session, index)).then_some((number, lane.handle))
    });
    answering.collect()
}

fn is_silent(session: &Session, index: usize) -> bool {
    session.busy_for(index).is_some_and(|busy| busy >= SILENCE)
}

/// Waits until the device at `index` has answered what it is asked, or is silent.
fn answers(session: &Session, index: usize) -> bool {
    while session.over().is_none() && !is_silent(session, index) {
        if session.busy_for(index).is_none() {
            return true;
        }
        session.sleep(Duration::from_millis(2));
    }
    false
}

type Devices = Vec<(u32, usize)>;

/// A set with every device that has such events, and the devices that were asked for them. One
/// that hangs is not asked, as nothing would be heard of the others then.
fn registered<'nvml>(
    library: &'nvml Library,
    session: &Session,
    devices: Devices,
) -> Result<(EventSet<'nvml>, Devices), NvmlError> {
    let mut unable = Devices::new();
    'again: loop {
        let mut set = library.create_event_set()?;
        let mut asked = unable.clone();
        for it in devices.iter().filter(|it| !unable.contains(it)) {
            let index = it.0;
            if !answers(session, index as usize) {
                continue;
            }
            asked.push(*it);
            let Ok(device) = library.device_by_index(index) else { continue };
            let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
            let kinds = device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
            match device.register_events(kinds, set) {
                Ok(with_device) => {
                    set = with_device;
                    let tells_xids = kinds.contains(EventTypes::CRITICAL_XID_ERROR);
                    session.lanes[index as usize].lock().tells_xids = tells_xids;
                }
                // The wrapper freed the set.
                Err(error) => {
                    debug!(index, %error, "no events of this GPU");
                    unable.push(*it);
                    continue 'again;
                }
            }
        }
        return Ok((set, asked));
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
            lane.count_xid(xid);
        }
    }
}
