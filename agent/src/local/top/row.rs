//! Pure: what is shown of a node → the rows of the table, device by device.
//!
//! Guarantees: a holder stands under its device and an instance under its GPU; what is unsupported,
//! failed and zero look different; a holder's figures are its part, as the gateways count it.

use std::sync::Arc;
use std::time::Duration;

use shared::frame::{Device, Holder};
use shared::identity::{DeviceUuid, PodKey};
use shared::metric::Metric;

use super::cell::{
    Cells, FAILED, MIB_PER_GIB, OF_DEVICE, OF_ENGINE, OF_HOLDER, Tone, cell, figure, memory, part,
    readings, share,
};
use super::column::Column;
use crate::local::view::{DeviceView, EngineView, View};

/// What a row is about, through every change of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// A device.
    Device(DeviceUuid),
    /// A container that holds a device, and how often it was named before.
    Holder(DeviceUuid, PodKey, Arc<str>, usize),
    /// What is nobody's of a device.
    Nobody(DeviceUuid),
    /// Why something of a device is not known, and its place among its rows.
    Reason(DeviceUuid, usize),
    /// An engine, with its selection of series.
    Engine(PodKey, Arc<str>),
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is about.
    pub id: Id,
    /// Its name, with what shows its place in the tree.
    pub name: String,
    /// How the name is meant.
    pub tone: Tone,
    /// One cell a column.
    pub cells: Cells,
    /// What a filter is looked for in.
    pub words: String,
}

/// A device with what stands under it.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The device, where it is one.
    pub view: Option<&'a DeviceView<'a>>,
    /// Its rows; the first is its own.
    pub rows: Vec<Row>,
    /// Pods that are in it.
    pub pods: Vec<&'a PodKey>,
    /// Requests that wait in the engines of its holders, where known.
    pub waiting: Option<f64>,
    /// Instances that are cut from it.
    pub instances: Vec<Group<'a>>,
}

/// The rows of everything in `view`; what was read longer ago than `aged` says so.
pub fn groups<'a>(view: &'a View<'a>, aged: Duration) -> Vec<Group<'a>> {
    let is_there = |uuid: &DeviceUuid| {
        view.devices.iter().any(|view| view.device.uuid == *uuid && view.device.mig.is_none())
    };
    let parent = |device: &'a Device| {
        device.mig.as_ref().map(|mig| &mig.parent).filter(|parent| is_there(parent))
    };
    let mut groups: Vec<Group<'a>> = Vec::new();
    for of in view.devices.iter().filter(|of| parent(of.device).is_none()) {
        groups.push(device(view, of, 0, aged));
    }
    for of in &view.devices {
        let Some(parent) = parent(of.device) else { continue };
        let known = groups
            .iter_mut()
            .find(|group| group.view.is_some_and(|whole| whole.device.uuid == *parent));
        if let Some(whole) = known {
            whole.instances.push(device(view, of, 1, aged));
        }
    }
    let shown = |of: &EngineView<'_>| {
        let held = view.devices.iter().flat_map(|view| &view.device.holders);
        let is_held = held.clone().any(|holder| holder.pod == of.engine.pod);
        is_held && engine_of(view, &of.engine.pod).is_some_and(|first| first.engine == of.engine)
    };
    groups.extend(view.engines.iter().filter(|of| !shown(of)).map(engine));
    groups
}

/// The engine of `pod` whose figures stand beside its name: the one of all series, else the first.
pub fn engine_of<'a>(view: &'a View<'a>, pod: &PodKey) -> Option<&'a EngineView<'a>> {
    let of_pod = || view.engines.iter().filter(|of| of.engine.pod == *pod);
    of_pod().find(|of| of.engine.labels.is_empty()).or_else(|| of_pod().next())
}

fn device<'a>(
    all: &'a View<'a>,
    view: &'a DeviceView<'a>,
    depth: usize,
    aged: Duration,
) -> Group<'a> {
    let device = view.device;
    let mut group = Group {
        view: Some(view),
        rows: vec![own(view, depth, aged, is_unheld(all, view))],
        pods: device.holders.iter().map(|holder| &holder.pod).collect(),
        waiting: None,
        instances: Vec::new(),
    };
    for (place, of) in view.holders() {
        let engine = engine_of(all, &of.pod);
        let waiting = engine.and_then(|of| of.readings.value(Metric::RequestsWaiting));
        group.waiting = [group.waiting, waiting].into_iter().flatten().reduce(f64::max);
        group.rows.push(holder(view, place, of, engine, depth));
        let broken = engine.and_then(reason_of_engine);
        let broken = broken.map(|why| format!("engine: {why}"));
        group.rows.extend(broken.map(|why| reason(device, group.rows.len(), depth + 1, &why)));
    }
    group.rows.extend(nobody(view, depth));
    let why = view.reason();
    group.rows.extend(why.map(|why| reason(device, group.rows.len(), depth, &why)));
    group
}

/// Whether it is known that nobody holds it; a GPU that is cut into instances is not to be held.
pub fn is_unheld(all: &View<'_>, view: &DeviceView<'_>) -> bool {
    let device = view.device;
    let mut parents = all.devices.iter().filter_map(|view| view.device.mig.as_ref());
    let is_cut = parents.any(|mig| mig.parent == device.uuid);
    device.holders.is_empty() && device.reason.is_none() && view.age.is_some() && !is_cut
}

/// The name people call a device by.
pub fn title(device: &Device) -> String {
    let name = device.name.strip_prefix("NVIDIA ").unwrap_or(&device.name);
    match &device.mig {
        Some(mig) => format!("MIG {} {}", device.index, mig.profile),
        None => format!("GPU {} {name}", device.index),
    }
}

fn own(view: &DeviceView<'_>, depth: usize, aged: Duration, is_unheld: bool) -> Row {
    let device = view.device;
    let old = view.age.filter(|age| *age > aged);
    let old = old.map(|age| format!(" ({} s old)", age.as_secs())).unwrap_or_default();
    let mut cells = readings(&view.readings, &OF_DEVICE);
    cells[Column::Memory as usize] = memory(view);
    let throttled = view.readings.value(Metric::ThrottledPercent);
    if throttled.is_some_and(|percent| percent > 0.0) {
        cells[Column::Throttled as usize].tone = Tone::Warning;
    }
    if is_unheld {
        cells[Column::Source as usize] = cell("no holder", Tone::Faint);
    }
    let name = format!("{}{}{old}", indent(depth), title(device));
    let tone = if old.is_empty() { Tone::Strong } else { Tone::Warning };
    let mut words = format!("{name} {} {}", device.uuid, device.name);
    words += &cells[Column::Source as usize].text;
    Row { id: Id::Device(device.uuid.clone()), name, tone, cells, words: words.to_lowercase() }
}

fn holder(
    view: &DeviceView<'_>,
    place: usize,
    holder: &Holder,
    engine: Option<&EngineView<'_>>,
    depth: usize,
) -> Row {
    let mut cells = match engine {
        Some(engine) => readings(&engine.readings, &OF_ENGINE),
        None => Default::default(),
    };
    for (column, metric) in OF_HOLDER {
        cells[column as usize] = part(view, place, metric);
    }
    cells[Column::Memory as usize] = part(view, place, Metric::MemoryUsedMib);
    cells[Column::Share as usize] = share(view, place);
    let (mark, tone) = match holder.undeclared {
        true => ("*", Tone::Warning),
        false => ("", Tone::Plain),
    };
    cells[Column::Source as usize] = cell(format!("{}{mark}", holder.source.name()), tone);
    let container = match &*holder.container {
        "" => String::new(),
        container => format!(" ({container})"),
    };
    let name = format!("{}└ {}{container}{mark}", indent(depth), holder.pod);
    let flags = [(holder.estimated, " estimated"), (holder.undeclared, " undeclared")];
    let flags = flags.map(|(is_so, flag)| if is_so { flag } else { "" }).concat();
    let words = format!("{name} {}{flags}", holder.source.name()).to_lowercase();
    let is_same = |of: &&Holder| of.pod == holder.pod && of.container == holder.container;
    let same = view.device.holders[..place].iter().filter(is_same).count();
    let device = view.device.uuid.clone();
    let id = Id::Holder(device, holder.pod.clone(), holder.container.clone(), same);
    Row { id, name, tone, cells, words }
}

/// What no holder has, where there is such a part.
fn nobody(view: &DeviceView<'_>, depth: usize) -> Option<Row> {
    let share = view.unattributed().filter(|share| *share > 0.0)?;
    if view.device.holders.is_empty() {
        return None;
    }
    let mut cells: Cells = Default::default();
    cells[Column::Share as usize] = cell(format!("{}%", figure(share * 100.0)), Tone::Warning);
    for (column, metric) in OF_HOLDER {
        if let Some(left) = view.left(metric) {
            cells[column as usize] = cell(figure(left), Tone::Warning);
        }
    }
    if let Some(left) = view.left(Metric::MemoryUsedMib) {
        let left = format!("{:.1}", left / MIB_PER_GIB);
        cells[Column::Memory as usize] = cell(left, Tone::Warning);
    }
    let name = format!("{}└ nobody", indent(depth));
    let words = "nobody unattributed".into();
    let id = Id::Nobody(view.device.uuid.clone());
    Some(Row { id, name, tone: Tone::Warning, cells, words })
}

fn reason(device: &Device, place: usize, depth: usize, why: &str) -> Row {
    let name = format!("{}{FAILED} {why}", indent(depth + 1));
    let words = format!("{name} failed").to_lowercase();
    let id = Id::Reason(device.uuid.clone(), place);
    Row { id, name, tone: Tone::Broken, cells: Default::default(), words }
}

/// Why nothing of the engine is known, where that is so.
fn reason_of_engine(view: &EngineView<'_>) -> Option<String> {
    let mut failures = view.readings.failures();
    let (_, why) = failures.next()?;
    (view.readings.known().iter().next().is_none()).then(|| why.to_string())
}

/// An engine that does not stand beside a holder.
fn engine<'a>(view: &'a EngineView<'a>) -> Group<'a> {
    let of = view.engine;
    let labels = match of.labels.is_empty() {
        true => String::new(),
        false => format!(" {{{}}}", of.labels),
    };
    let why = reason_of_engine(view).map(|why| format!(" {FAILED} {why}")).unwrap_or_default();
    let name = format!("ENGINE {}{labels}{why}", of.pod);
    let words = name.to_lowercase();
    let cells = readings(&view.readings, &OF_ENGINE);
    let id = Id::Engine(of.pod.clone(), of.labels.clone());
    let row = Row { id, name, tone: Tone::Strong, cells, words };
    let waiting = view.readings.value(Metric::RequestsWaiting);
    Group { view: None, rows: vec![row], pods: vec![&of.pod], waiting, instances: Vec::new() }
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}
