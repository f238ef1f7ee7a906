//! The ScaledObjects there are: as a list, and as what a name that is none could have meant.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Target;
use crate::directory::{ScaledObject, Snapshot};

/// Names that a message lists; the others are counted.
const MAX_NAMES: usize = 20;

/// A ScaledObject that can be explained.
#[derive(Debug, Serialize, Deserialize)]
pub struct Known {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it scales.
    pub target: Target,
}

impl From<&Arc<ScaledObject>> for Known {
    fn from(object: &Arc<ScaledObject>) -> Self {
        let target = Target { kind: object.target.kind.clone(), name: object.target.name.clone() };
        Self { namespace: object.key.namespace.clone(), name: object.key.name.clone(), target }
    }
}

/// Every ScaledObject, by namespace and name.
pub fn all(snapshot: &Snapshot) -> Vec<Known> {
    snapshot.objects().iter().map(Known::from).collect()
}

/// The list for people: one a line, with what it scales.
pub fn table(known: &[Known]) -> String {
    if known.is_empty() {
        return "no ScaledObject is known\n".into();
    }
    let name = |it: &Known| format!("{}/{}", it.namespace, it.name);
    let width = known.iter().map(|it| name(it).chars().count()).max().unwrap_or_default();
    known.iter().fold(String::new(), |mut text, it| {
        let Target { kind, name: target } = &it.target;
        writeln!(text, "{:<width$}  {kind} {target}", name(it))
            .expect("writing to a String does not fail");
        text
    })
}

/// Names that could have been meant: those of the namespace, else all.
pub(super) fn names(snapshot: &Snapshot, namespace: &str) -> String {
    let all = snapshot.objects();
    if all.is_empty() {
        return "none is known".into();
    }
    let here = all.iter().filter(|object| &*object.key.namespace == namespace);
    let here: Vec<_> = here.map(|object| object.key.name.to_string()).collect();
    if !here.is_empty() {
        return format!("known in {namespace}: {}", some(&here));
    }
    let all: Vec<_> =
        all.iter().map(|object| format!("{}/{}", object.key.namespace, object.key.name)).collect();
    format!("known: {}", some(&all))
}

/// The first names, and how many there are besides.
fn some(names: &[String]) -> String {
    let first = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
