//! Pure: the rows of devices → those that are looked for, in the order that is asked for.
//!
//! Guarantees: what is not known stands last in either order; instances stay with their GPU and
//! holders with their device; equal ones keep the order of the inventory.

use std::cmp::Ordering;

use shared::metric::Metric;

use super::row::{Group, Row};
use super::state::{Sort, State};

/// The rows of `groups` that `state` looks for.
pub fn arrange(groups: Vec<Group<'_>>, state: &State) -> Vec<Row> {
    let filter = state.filter.trim().to_lowercase();
    let mut groups: Vec<_> = groups.into_iter().filter_map(|group| kept(group, &filter)).collect();
    sort(&mut groups, state);
    let mut rows = Vec::new();
    for group in groups {
        rows.extend(group.rows);
        rows.extend(group.instances.into_iter().flat_map(|instance| instance.rows));
    }
    rows
}

/// What of the group has `filter` in it: all of it where the device has, else single rows under
/// the device.
fn kept<'a>(mut group: Group<'a>, filter: &str) -> Option<Group<'a>> {
    let has = |row: &Row| row.words.contains(filter);
    if group.rows.first().is_some_and(has) {
        return Some(group);
    }
    let mut rows = std::mem::take(&mut group.rows).into_iter();
    group.rows.extend(rows.next());
    group.rows.extend(rows.filter(has));
    let instances = std::mem::take(&mut group.instances);
    group.instances = instances.into_iter().filter_map(|group| kept(group, filter)).collect();
    (group.rows.len() > 1 || !group.instances.is_empty()).then_some(group)
}

fn sort(groups: &mut [Group<'_>], state: &State) {
    for group in groups.iter_mut() {
        sort(&mut group.instances, state);
    }
    let turned = |order: Ordering| if state.reversed { order.reverse() } else { order };
    match state.sort {
        Sort::Index => groups.sort_by(|a, b| known(index(a), index(b), |a, b| turned(a.cmp(b)))),
        Sort::Pod => groups.sort_by(|a, b| known(pod(a), pod(b), |a, b| turned(a.cmp(b)))),
        sort => groups
            .sort_by(|a, b| known(value(a, sort), value(b, sort), |a, b| turned(b.total_cmp(a)))),
    }
}

/// The order of two that are known; what is not is last.
fn known<T>(a: Option<T>, b: Option<T>, compare: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare(&a, &b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn index(group: &Group<'_>) -> Option<u32> {
    group.view.map(|view| view.device.index)
}

/// The first of its pods by name.
fn pod(group: &Group<'_>) -> Option<String> {
    let own = group.pods.iter().map(|pod| pod.to_string());
    own.chain(group.instances.iter().filter_map(pod)).min()
}

/// The highest value in it.
fn value(group: &Group<'_>, sort: Sort) -> Option<f64> {
    let of = |metric| group.view?.readings.value(metric);
    let own = match sort {
        Sort::Utilization => of(Metric::GpuUtilization),
        Sort::Memory => of(Metric::MemoryUsedMib),
        Sort::Temperature => of(Metric::Temperature),
        Sort::Power => of(Metric::PowerDraw),
        Sort::Waiting => group.waiting,
        Sort::Index | Sort::Pod => None,
    };
    let instances = group.instances.iter().filter_map(|group| value(group, sort));
    own.into_iter().chain(instances).reduce(f64::max)
}
