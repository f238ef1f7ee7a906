//! Device ids as the kubelet lists them.
//!
//! Guarantees: an id is understood as a whole: written anew from its parts it is the same text.

use agent::owner::id::{DeviceRef, parse};

/// Reads `data` as one id.
pub fn read(data: &[u8]) {
    let Ok(id) = std::str::from_utf8(data) else { return };
    let written = match parse(id) {
        DeviceRef::Uuid { uuid, replica } => format!("{uuid}{}", part("::", replica)),
        DeviceRef::LegacyMig { parent, gpu_instance, compute_instance, replica } => {
            let replica = part("::", replica);
            format!("MIG-{parent}/{gpu_instance}/{compute_instance}{replica}")
        }
        DeviceRef::Minor { minor, gpu_instance, share } => {
            format!("nvidia{minor}{}{}", part("/gi", gpu_instance), part("/vgpu", share))
        }
        DeviceRef::Unread(why) => return assert!(!why.sentence().is_empty()),
    };
    assert_eq!(written, id);
}

fn part(mark: &str, number: Option<u32>) -> String {
    number.map(|number| format!("{mark}{number}")).unwrap_or_default()
}
