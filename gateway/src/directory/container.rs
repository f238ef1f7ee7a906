//! Containers of pods, and the runtime's ids for them.
//!
//! Guarantees: an id is either whole or not there.

use std::fmt;
use std::sync::Arc;

/// A container of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// Its name.
    pub name: Arc<str>,
    /// The runtime's id for it; `None` until it was started.
    pub id: Option<ContainerId>,
}

/// A container's id as every runtime that keeps to the CRI makes it: 64 hexadecimal digits. Kept
/// as what they stand for, because there are as many as there are containers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContainerId([u8; 32]);

impl ContainerId {
    /// Reads the 64 digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
        let pairs: &[[u8; 2]; 32] = pairs.try_into().ok()?;
        let mut id = [0; 32];
        for (byte, [high, low]) in id.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(id))
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
