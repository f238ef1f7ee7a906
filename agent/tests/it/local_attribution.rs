//! What is shown of a device whose holders are told apart by their processes.

use std::time::Duration;

use agent::device::replay::line;
use agent::device::{Observation, ObservedDevice};
use agent::frame::{Taken, assemble};
use agent::local::view::View;
use agent::local::{Format, json, render};
use shared::frame::Mig;
use shared::metric::Metric;
use shared::reading::Reading;

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
    let below: Vec<_> = table.lines().skip(2).map(str::trim).collect();
    let expected = [
        "ai/llm (main) 60 % util [process]",
        "ai/batch (main) 20 % util [process, undeclared]",
        "nobody 10 % util",
    ];
    assert_eq!(below, expected, "{table}");
}

#[test]
fn what_is_written_below_a_device_keeps_within_the_terminal() {
    let mut node = taken();
    let mut inventory = (*node.frame.inventory).clone();
    let device = &mut inventory.devices[0];
    device.name = "NVIDIA RTX PRO 6000 Blackwell Server Edition".into();
    device.memory_total_mib = Some(97_887.0);
    device.mig = Some(Mig { parent: "GPU-b".into(), profile: "1g.24gb+me".into() });
    device.reason = Some("a word and another one ".repeat(20).trim().into());
    node.frame.inventory = inventory.into();
    let table = render(Format::Table, &node, at(0), STALE);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.contains(" NVIDIA RTX PRO 6000 Bla… 1g.24gb+me "), "{table}");
    assert!(table.matches("\n       ").count() >= 4, "what goes on is indented: {table}");
}

#[test]
fn the_share_that_is_nobodys_follows_the_rule_of_the_gateways() {
    let with = |utilization: Option<f64>, holders: bool| {
        let mut node = taken();
        let mut inventory = (*node.frame.inventory).clone();
        let sample = node.frame.sample.devices[0].as_mut().unwrap();
        if !holders {
            inventory.devices[0].holders.clear();
            sample.held.clear();
        }
        if utilization != Some(90.0) {
            let reading = utilization.map(|load| (Metric::GpuUtilization, Reading::Ok(load)));
            sample.readings = reading.into_iter().collect();
        }
        node.frame.inventory = inventory.into();
        View::of(&node, at(0), STALE).devices[0].unattributed()
    };
    assert_eq!(with(Some(90.0), true), Some(0.111_111), "held readings win over shares");
    assert_eq!(with(Some(50.0), true), Some(0.0), "holders have more than was read");
    assert_eq!(with(Some(0.0), true), Some(0.0));
    assert_eq!(with(None, true), None, "their shares are not known");
    assert_eq!(with(Some(90.0), false), Some(1.0));
    assert_eq!(with(None, false), None);
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
        format!("unattributed_ratio{{{nobody}}} 0.111111"),
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
        r#""unattributed":0.111111,"unattributed_gpu_utilization":10,"unattributed_memory_used_mib":100"#,
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
    assert!(table.contains("ai/batch (main) ? [process, undeclared]"), "{table}");
    let line = json::line(&View::of(&taken, at(0), STALE), 0);
    assert!(line.contains(r#""unattributed":null"#), "a script is told: {line}");
}
