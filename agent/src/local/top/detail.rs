//! Pure: the selected row → all that is known of it, in lines.
//!
//! Guarantees: every reading that failed stands there with its reason, every holder with what its
//! part rests on; nothing is rounded away that the table rounds.

use shared::frame::{Holder, HolderSource};
use shared::identity::{DeviceUuid, PodKey};
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

use super::cell::Tone;
use super::history::{self, History, Whose};
use super::row::{Id, engine_of, title};
use super::text::{sparkline, wrapped};
use crate::local::view::{DeviceView, EngineView, View};

/// Cells of the names of readings.
const LABEL: usize = 24;

/// A line and how it is meant.
pub type Line = (String, Tone);

/// What there is to say of `id`, in lines of at most `width` cells.
pub fn lines(view: &View<'_>, history: &History, id: &Id, width: usize) -> Vec<Line> {
    let mut page = Page { lines: Vec::new(), width, history };
    let device = |uuid: &DeviceUuid| view.devices.iter().find(|view| view.device.uuid == *uuid);
    match id {
        Id::Device(uuid) | Id::Nobody(uuid) | Id::Reason(uuid, _) => {
            let Some(of) = device(uuid) else { return gone() };
            page.device(of);
        }
        Id::Holder(uuid, pod, container, _) => {
            let Some(of) = device(uuid) else { return gone() };
            let mut holders = of.holders();
            let held = holders.find(|(_, of)| of.pod == *pod && of.container == *container);
            let Some((place, holder)) = held else { return gone() };
            page.holder(of, place, holder);
            page.elsewhere(view, of, pod);
            match engine_of(view, pod) {
                Some(engine) => page.engine(engine),
                None => page.say("engine: not read here", Tone::Faint),
            }
        }
        Id::Engine(pod, labels) => {
            let mut engines = view.engines.iter();
            let of = engines.find(|of| of.engine.pod == *pod && of.engine.labels == *labels);
            let Some(of) = of else { return gone() };
            page.engine(of);
        }
    }
    page.lines
}

fn gone() -> Vec<Line> {
    vec![("it is no longer there".into(), Tone::Warning)]
}

struct Page<'a> {
    lines: Vec<Line>,
    width: usize,
    history: &'a History,
}

impl Page<'_> {
    fn say(&mut self, text: &str, tone: Tone) {
        self.lines.extend(wrapped(text, self.width).into_iter().map(|line| (line, tone)));
    }

    fn device(&mut self, view: &DeviceView<'_>) {
        let device = view.device;
        self.say(&format!("{}  {}  {}", title(device), device.name, device.uuid), Tone::Strong);
        if let Some(mig) = &device.mig {
            self.say(&format!("an instance of {}", mig.parent), Tone::Plain);
        }
        match view.age {
            Some(age) => self.say(&format!("read {} s ago", age.as_secs()), Tone::Faint),
            None => self.say("! nothing new was read of it", Tone::Broken),
        }
        if let Some(why) = &device.reason {
            self.say(&format!("! {why}"), Tone::Broken);
        }
        if device.holders.is_empty() {
            self.say("no holder is known", Tone::Faint);
        }
        for (_, holder) in view.holders() {
            let said = format!("held by {}: {}", named(holder), basis(holder));
            self.say(&said, Tone::Plain);
        }
        if let Some(share) = view.unattributed().filter(|share| *share > 0.0) {
            let said = format!("{:.1} % of its load is no holder's", share * 100.0);
            self.say(&said, Tone::Warning);
        }
        let whose = Whose::Device(device.uuid.clone());
        self.readings(&view.readings, &whose, &history::OF_DEVICE);
    }

    fn holder(&mut self, view: &DeviceView<'_>, place: usize, holder: &Holder) {
        self.say(&named(holder), Tone::Strong);
        let uid = holder.uid.as_ref().map_or("not known", |uid| uid.as_str());
        self.say(&format!("pod UID {uid}"), Tone::Faint);
        let device = view.device;
        self.say(&format!("on {} {}", title(device), device.uuid), Tone::Plain);
        self.say(&basis(holder), Tone::Plain);
        if let Some(share) = holder.share {
            let guess = if holder.estimated { " (a guess)" } else { "" };
            self.say(&format!("share {:.1} %{guess}", share * 100.0), Tone::Plain);
        }
        for metric in [Metric::GpuUtilization, Metric::MemoryUsedMib, Metric::PowerDraw] {
            let said = match (view.part(place, metric), view.readings.get(metric)) {
                (Some(part), _) => format!("{part:.1} {}", metric.unit().symbol()),
                (None, Reading::Ok(_)) => "its part cannot be told".into(),
                (None, Reading::Unsupported) => "-".into(),
                (None, Reading::Failed(why)) => format!("! {why}"),
            };
            self.say(&format!("{:LABEL$}{said}", format!("its {metric}")), Tone::Plain);
        }
    }

    /// The pod's other devices: what its engine says is of all of them together.
    fn elsewhere(&mut self, all: &View<'_>, here: &DeviceView<'_>, pod: &PodKey) {
        let others = all.devices.iter().filter(|of| {
            let is_other = of.device.uuid != here.device.uuid;
            is_other && of.device.holders.iter().any(|holder| holder.pod == *pod)
        });
        let others: Vec<_> = others.map(|of| title(of.device)).collect();
        if !others.is_empty() {
            self.say(&format!("the pod also holds {}", others.join(", ")), Tone::Plain);
        }
    }

    fn engine(&mut self, view: &EngineView<'_>) {
        let of = view.engine;
        let labels = match of.labels.is_empty() {
            true => String::new(),
            false => format!(" {{{}}}", of.labels),
        };
        self.say(&format!("engine of {}{labels}", of.pod), Tone::Strong);
        let whose = Whose::Engine(of.pod.clone(), of.labels.clone());
        self.readings(&view.readings, &whose, &history::OF_ENGINE);
    }

    fn readings(&mut self, readings: &Readings, whose: &Whose, past: &[Metric]) {
        for (metric, reading) in readings.iter() {
            let (said, tone) = match reading {
                Reading::Ok(value) => {
                    let value = (value * 10.0).round() / 10.0;
                    (format!("{value} {}", metric.unit().symbol()), Tone::Plain)
                }
                Reading::Failed(why) => (format!("! {why}"), Tone::Broken),
                Reading::Unsupported => ("-".into(), Tone::Faint),
            };
            let trend = past.iter().position(|of| *of == metric).map(|place| {
                let room = self.width.saturating_sub(LABEL + 14).min(history::DEPTH);
                let values = || self.history.of(whose, place);
                let most = match metric.unit() {
                    shared::metric::Unit::Percent => 100.0,
                    _ => values().flatten().fold(0.0, f64::max),
                };
                sparkline(values(), most, room)
            });
            let line = match trend {
                Some(trend) => format!("{:LABEL$}{:14}{trend}", metric.name(), said.trim_end()),
                None => format!("{:LABEL$}{}", metric.name(), said.trim_end()),
            };
            // A figure and its past stand in columns; only reasons are broken into lines.
            match tone {
                Tone::Broken => self.say(&line, tone),
                _ => self.lines.push((line, tone)),
            }
        }
        if readings.iter().next().is_none() {
            self.say("no reading", Tone::Faint);
        }
    }
}

fn named(holder: &Holder) -> String {
    match &*holder.container {
        "" => holder.pod.to_string(),
        container => format!("{} (container {container})", holder.pod),
    }
}

/// What its part rests on.
fn basis(holder: &Holder) -> String {
    let source = match holder.source {
        HolderSource::Replay => "written in the recording",
        HolderSource::File => "written in the holders file",
        HolderSource::Simulated => "made up by the simulation",
        HolderSource::Kubelet => "the kubelet gave it the device, and no other",
        HolderSource::Dra => "the device was claimed for it, and for no other",
        HolderSource::Process => "one of several, told apart by what their processes do",
        HolderSource::Memory => "one of several, told apart by the memory of their processes",
        HolderSource::Equal => "one of several that cannot be told apart",
    };
    let estimated = if holder.estimated { "; its share is a guess" } else { "" };
    let undeclared = match holder.undeclared {
        true => "; undeclared: it uses the device without having been given it",
        false => "",
    };
    format!("{} ({source}{estimated}{undeclared})", holder.source.name())
}
