//! Names off the wire.
//!
//! Guarantees: none is empty or longer than it may be; one that an inventory has several times is
//! kept once.

use std::collections::HashSet;
use std::sync::Arc;

use shared::identity::PodKey;

use super::MAX_NAME;

/// The names of one inventory: of models, containers, namespaces, pods.
#[derive(Default)]
pub(super) struct Names(HashSet<Arc<str>>);

impl Names {
    /// `text`, kept once.
    pub(super) fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let name = Arc::<str>::from(text);
        self.0.insert(name.clone());
        name
    }

    /// A pod off the wire.
    ///
    /// # Errors
    /// When a part of it is empty or too long.
    pub(super) fn pod(&mut self, namespace: &str, pod: &str) -> Result<PodKey, String> {
        let (namespace, pod) = (checked("namespace", namespace)?, checked("pod", pod)?);
        Ok(PodKey::new(self.shared(namespace), self.shared(pod)))
    }
}

/// The name of a `what`, if it can be one.
///
/// # Errors
/// When it is empty or too long.
pub(super) fn checked<'a>(what: &str, text: &'a str) -> Result<&'a str, String> {
    match text.len() {
        0 => Err(format!("the {what} is empty")),
        1..=MAX_NAME => Ok(text),
        length => Err(format!("the {what} has {length} bytes; at most {MAX_NAME} are accepted")),
    }
}
