//! The threads of one device: one for what is quick, one for what takes its time.
//!
//! Guarantees: whatever hangs here hangs for this device alone; a device that failed is tried
//! again with a back-off, and is fine again at the first answer.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;
use tracing::{info, warn};

use super::fault::Fault;
use super::gauge::{Gauge, Past, reading};
use super::lane::{Asking, Identity, Lane};
use super::library::Library;
use super::mig::Cut;
use super::raw;
use super::read::Read;
use super::session::Session;
use super::wear::Wear;

/// How long a handle is used: what it stands for, and can do, may have changed.
const HANDLE_LIFE: Duration = Duration::from_secs(60);
/// Time until a device that failed is tried again; it doubles up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// What is remembered of a device over its handles.
#[derive(Default)]
struct Known<'nvml> {
    past: Past<'nvml>,
    cut: Cut<'nvml>,
}

/// Reads the device at `index`, and its MIG instances, once a round; looks for these every `look`.
pub(super) fn read(library: &Library, session: &Session, index: usize, look: Duration) {
    let mut known = Known::default();
    let mut gauge: Option<(Gauge<'_>, Timestamp)> = None;
    let mut retry = (RETRY.0, Timestamp::LONG_AGO);
    let mut seen = 0;
    while let Some(round) = session.wait(index, seen) {
        seen = round;
        let now = session.clock.now();
        gauge = gauge.filter(|(_, since)| now.since(*since) < HANDLE_LIFE);
        if gauge.is_none() && now < retry.1 {
            continue;
        }
        match once(library, session, (index, look), (&mut gauge, &mut known), now) {
            Ok(read) => {
                retry = (RETRY.0, Timestamp::LONG_AGO);
                succeed(&session.lanes[index], read, &known.cut, index);
            }
            Err(Fault::Library(reason)) => {
                fail(&session.lanes[index], &reason, index);
                session.end(&reason);
            }
            Err(Fault::Device(reason)) => {
                gauge = None;
                retry = ((retry.0 * 2).min(RETRY.1), now + retry.0);
                fail(&session.lanes[index], &reason, index);
            }
        }
    }
}

type State<'a, 'nvml> = (&'a mut Option<(Gauge<'nvml>, Timestamp)>, &'a mut Known<'nvml>);

fn once<'nvml>(
    library: &'nvml Library,
    session: &'nvml Session,
    (index, look): (usize, Duration),
    (gauge, known): State<'_, 'nvml>,
    now: Timestamp,
) -> Result<Read, Fault> {
    if gauge.is_none() {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let opened = Gauge::open(library, number, session.asking(index));
        let mut opened = opened.map_err(|error| Fault::of_device(&error))?;
        // A UUID that cannot be read is no reason to forget whose place this is: it is the same
        // GPU, failed, until another one answers.
        let identity = opened.identity(number)?;
        forget_elsewhere(session, index, &identity);
        if !session.lanes[index].lock().meet(identity, raw::handle(&opened.device)) {
            *known = Known::default();
        }
        known.cut.look_again();
        *gauge = Some((opened, now));
    }
    let Some((gauge, _)) = gauge else { return Err(Fault::Device("it has no handle".into())) };
    let whose = session.lanes[index].lock().identity.clone();
    let whose = whose.ok_or_else(|| Fault::Device("its UUID is not known".into()))?;
    known.cut.look(gauge, &whose, now, look)?;
    let read = read_once(gauge, &mut known.past, known.cut.is_cut(), now)?;
    known.cut.read(gauge, &whose, now)?;
    Ok(read)
}

/// A GPU that answers here is not at another index, where it failed since or was before the
/// library was opened.
fn forget_elsewhere(session: &Session, index: usize, identity: &Identity) {
    for (other, lane) in session.lanes.iter().enumerate().filter(|(other, _)| *other != index) {
        let mut lane = lane.lock();
        let is_claimed = lane.identity.as_ref().is_some_and(|known| known.uuid == identity.uuid);
        if is_claimed && (lane.failure.is_some() || lane.handle == 0) {
            warn!(index, before = other, uuid = %identity.uuid, "GPU has another index now");
            lane.forget();
        }
    }
}

/// A device of which nothing at all can be read has failed as a whole.
fn read_once<'nvml>(
    gauge: &Gauge<'nvml>,
    past: &mut Past<'nvml>,
    is_cut: bool,
    now: Timestamp,
) -> Result<Read, Fault> {
    let read = gauge.read(past, is_cut, now)?;
    match read.failure() {
        Some(reason) => Err(Fault::Device(reason.clone())),
        None => Ok(read),
    }
}

fn succeed(lane: &parking_lot::Mutex<Lane>, read: Read, cut: &Cut<'_>, index: usize) {
    let mut lane = lane.lock();
    if lane.failure.take().is_some() {
        info!(index, "GPU can be read again");
    }
    lane.read = Some(read);
    lane.instances = cut.told();
}

fn fail(lane: &parking_lot::Mutex<Lane>, reason: &Arc<str>, index: usize) {
    let mut lane = lane.lock();
    if lane.failure.as_ref() != Some(reason) {
        warn!(index, %reason, "GPU cannot be read");
        lane.failure = Some(reason.clone());
    }
}

/// Reads what blocks for a while even when all is well, every `period`.
pub(super) fn read_slowly(library: &Library, session: &Session, index: usize, period: Duration) {
    let lane = &session.lanes[index];
    // A reading that hangs here is told by its age; the quick ones go on.
    let unnoticed = parking_lot::Mutex::default();
    let asking = Asking { lane: &unnoticed, clock: session.clock };
    loop {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let mut slow = Read::new(session.clock.now());
        let is_counted =
            lane.lock().read.as_ref().is_some_and(|read| read.get(Metric::PcieTxKbps).is_some());
        let gauge = Gauge::open(library, number, asking);
        let wear = gauge.as_ref().ok().map(Wear::read);
        if !is_counted {
            for (metric, counter) in [
                (Metric::PcieTxKbps, PcieUtilCounter::Send),
                (Metric::PcieRxKbps, PcieUtilCounter::Receive),
            ] {
                slow.put(metric, pcie(gauge.as_ref(), counter));
            }
        }
        {
            let mut lane = lane.lock();
            lane.slow = Some(slow);
            if let Some(wear) = wear {
                lane.wear = Some(wear.after(lane.wear.take()));
            }
        }
        if !session.sleep(period) {
            return;
        }
    }
}

fn pcie(gauge: Result<&Gauge<'_>, &NvmlError>, counter: PcieUtilCounter) -> Reading {
    let answer = match gauge {
        Ok(gauge) => gauge.device.pcie_throughput(counter).map(f64::from),
        Err(error) => return Reading::Failed(super::fault::words(error).into()),
    };
    match reading(answer) {
        Ok(reading) => reading,
        Err(Fault::Device(reason) | Fault::Library(reason)) => Reading::Failed(reason),
    }
}
