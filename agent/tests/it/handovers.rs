//! Devices that change hands, and whom their readings are billed to.

use std::time::Duration;

use agent::device::{Observation, Processes};
use agent::frame::assemble;
use agent::owner::handover::Handovers;
use agent::owner::process::ProcessOwners;
use agent::owner::resolve;

use crate::attribution::{Node, card, declaration, given};
use crate::cgroups::{P1, P2};
use crate::owner::knowing;
use crate::support::at;

/// Whether the device was billed, tick by tick: who was given it, and how old its reading is.
fn billed(ticks: &[(&[&str], u64)]) -> Vec<bool> {
    let mut handovers = Handovers::default();
    let mut previous = None;
    let tick = |(second, (pods, age)): (usize, &(&[&str], u64))| {
        let mut device = card(80.0, vec![]);
        device.processes = Processes::Unasked;
        device.age = Duration::from_millis(*age);
        let pods = pods.iter().map(|pod| given(pod, Some(&format!("uid of {pod}")), "main"));
        let declared = declaration(&[("GPU-a", pods.collect())]);
        let observation = Observation { devices: vec![device], ..Observation::default() };
        let unread = ProcessOwners::unread();
        let mut owners = resolve(&observation, knowing(&declared, &unread));
        handovers.mark(&observation, &mut owners, at(i64::try_from(second).unwrap() * 1_000));
        let frame = assemble(observation, owners, previous.as_ref());
        let is_billed = frame.sample.devices[0].is_some();
        previous = Some(frame.inventory);
        is_billed
    };
    ticks.iter().enumerate().map(tick).collect()
}

#[test]
fn a_device_that_changes_hands_is_billed_to_neither_until_it_is_read_again() {
    let (a, b): (&[&str], &[&str]) = (&["a"], &["b"]);
    assert_eq!(billed(&[(a, 0), (b, 0), (b, 0)]), [true, false, true]);
    // The reading is of before, again and again.
    assert_eq!(billed(&[(a, 0), (b, 500), (b, 1_500), (b, 200)]), [true, false, false, true]);
    // Back and forth.
    assert_eq!(billed(&[(a, 0), (b, 0), (a, 0), (a, 0)]), [true, false, false, true]);
    // One of two goes.
    assert_eq!(billed(&[(&["a", "b"], 0), (a, 0), (a, 0)]), [true, false, true]);
    // Nobody in between; one more; the first.
    assert_eq!(billed(&[(a, 0), (&[], 0), (b, 0)]), [true, true, true]);
    assert_eq!(billed(&[(a, 0), (&["a", "b"], 0)]), [true, true]);
    assert_eq!(billed(&[(&[], 0), (a, 0)]), [true, true]);
}

#[test]
fn a_pod_that_is_made_again_under_its_name_is_another_holder() {
    let mut node = Node::new();
    let mut handovers = Handovers::default();
    let mut marked = |uid: &str, second: i64| {
        let declared = declaration(&[("GPU-a", vec![given("llm", Some(uid), "main")])]);
        let observation =
            Observation { devices: vec![card(80.0, vec![])], ..Observation::default() };
        let mut owners = node.owners(observation.devices.clone(), &declared);
        handovers.mark(&observation, &mut owners, at(second * 1_000));
        (owners[0].holders[0].uid.clone(), owners[0].is_handed_over)
    };
    assert_eq!(marked(P1, 0), (Some(P1.into()), false));
    assert_eq!(marked(P2, 1), (Some(P2.into()), true));
    assert_eq!(marked(P2, 2), (Some(P2.into()), false));
}
