//! What is shown of a device whose holders are told apart by their processes.

use std::time::Duration;

use agent::device::replay::line;
use agent::device::{Observation, ObservedDevice};
use agent::frame::{Taken, assemble};
use agent::local::view::View;
use agent::local::{Format, json, render};
use shared::metric::Metric;

use crate::attribution::{Node, card, declaration, given};
use crate::cgroups::P1;
use crate::owner::written;
use crate::processes::process;
use crate::support::at;

const STALE: Duration = Duration::from_secs(10);

/// A card of llm's, which batch uses undeclared and a tenth of which is nobody's.
fn device() -> ObservedDevice {
    card(90.0, vec![process(100, Some(60.0), Some(300.0)), process(102, Some(20.0), Some(500.0))])
}

fn taken() -> Taken {
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    let owners = Node::new().owners(vec![device()], &alone);
    let observation = Observation { devices: vec![device()], ..Observation::default() };
    Taken { frame: assemble(observation, owners, None), at: at(0), kubelet: None }
}

#[test]
fn the_table_shows_who_uses_what_and_what_is_nobodys() {
    let table = render(Format::Table, &taken(), at(0), STALE);
    let holders = "ai/llm (main) 60 % util, ai/batch (main) 20 % util undeclared, nobody 10 % util";
    assert!(table.contains(holders), "{table}");
}

#[test]
fn the_metrics_add_up_to_the_device_and_say_what_they_rest_on() {
    let text = render(Format::Prometheus, &taken(), at(0), STALE);
    let device = r#"gpu_uuid="GPU-a",gpu_index="0",gpu_model="test""#;
    let of = |pod| format!(r#"{device},namespace="ai",pod="{pod}",container="main""#);
    let nobody = format!(r#"{device},namespace="",pod="",container="""#);
    let info = |pod, undeclared| {
        let of = of(pod);
        format!(
            r#"holder_info{{{of},source="process",estimated="false",undeclared="{undeclared}"}} 1.0"#
        )
    };
    for line in [
        info("llm", false),
        info("batch", true),
        format!("holder_utilization_ratio{{{}}} 0.6", of("llm")),
        format!("holder_utilization_ratio{{{}}} 0.2", of("batch")),
        format!("unattributed_utilization_ratio{{{nobody}}} 0.1"),
        format!("unattributed_memory_used_bytes{{{nobody}}} 104857600.0"),
        format!("utilization_ratio{{{nobody}}} 0.9"),
    ] {
        assert!(text.contains(&format!("\ngpu_agent_{line}\n")), "{line}\n{text}");
    }
    assert!(!text.contains("holder_share_ratio"), "{text}");
}

#[test]
fn a_recording_of_it_shows_the_same_again() {
    let first = taken();
    let view = View::of(&first, at(0), STALE);
    let written_down = json::line(&view, 0);
    for part in [
        r#""source":"process","estimated":false,"undeclared":true"#,
        r#""unattributed_gpu_utilization":10,"unattributed_memory_used_mib":100"#,
    ] {
        assert!(written_down.contains(part), "{written_down}");
    }
    let line = line::parse(written_down.as_bytes()).unwrap();
    assert_eq!(line.unknown, Vec::<String>::new());
    let observation = line.observation;
    let owners = written(&observation);
    let again = Taken { frame: assemble(observation, owners, None), at: at(0), kubelet: None };
    let second = View::of(&again, at(0), STALE);
    assert_eq!(json::line(&second, 0), written_down);
    for (place, holder) in second.devices[0].holders() {
        assert_eq!(*holder, view.devices[0].device.holders[place]);
        for &metric in Metric::ALL {
            let part = |view: &View<'_>| view.devices[0].part(place, metric);
            assert_eq!(part(&second), part(&view), "{metric}");
        }
    }
}

#[test]
fn of_what_cannot_be_told_there_is_no_figure() {
    let mut device = device();
    device.processes = agent::device::Processes::Known(vec![
        process(100, Some(60.0), None),
        process(102, None, None),
    ]);
    let alone = declaration(&[("GPU-a", vec![given("llm", Some(P1), "main")])]);
    let owners = Node::new().owners(vec![device.clone()], &alone);
    let observation = Observation { devices: vec![device], ..Observation::default() };
    let taken = Taken { frame: assemble(observation, owners, None), at: at(0), kubelet: None };
    let text = render(Format::Prometheus, &taken, at(0), STALE);
    assert!(!text.contains("holder_memory_used"), "{text}");
    assert!(!text.contains("unattributed"), "{text}");
    let table = render(Format::Table, &taken, at(0), STALE);
    assert!(table.contains("ai/llm (main) 60 % util, ai/batch (main) ? undeclared"), "{table}");
}
