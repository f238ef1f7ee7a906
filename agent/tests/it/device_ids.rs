//! What a device id names, form by form.

use agent::owner::id::{DeviceRef, Why, parse};
use proptest::prelude::*;

const GPU: &str = "GPU-5a5a7118-e550-79a1-597e-7631e126c57a";
const MIG: &str = "MIG-42f0f413-f7b0-58cc-aced-c1d1fb54db26";

fn uuid(uuid: &str, replica: Option<u32>) -> DeviceRef<'_> {
    DeviceRef::Uuid { uuid, replica }
}

fn minor(minor: u32, gpu_instance: Option<u32>, share: Option<u32>) -> DeviceRef<'static> {
    DeviceRef::Minor { minor, gpu_instance, share }
}

fn legacy(gpu_instance: u32, compute_instance: u32, replica: Option<u32>) -> DeviceRef<'static> {
    DeviceRef::LegacyMig { parent: GPU, gpu_instance, compute_instance, replica }
}

#[test]
fn every_form_is_read_as_its_plugin_means_it() {
    for (id, expected) in [
        (GPU.to_owned(), uuid(GPU, None)),
        (format!("{GPU}::3"), uuid(GPU, Some(3))),
        (format!("{MIG}::0"), uuid(MIG, Some(0))),
        ("nvidia0/gi3/vgpu0".into(), minor(0, Some(3), Some(0))),
        ("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448-4".into(), DeviceRef::Unread(Why::Hami)),
        ("0000:c1:00.0".into(), DeviceRef::Unread(Why::Amd)),
        (format!("{MIG}::"), DeviceRef::Unread(Why::UnknownForm)),
    ] {
        assert_eq!(parse(&id), expected, "{id}");
    }
}

#[test]
fn further_good_forms() {
    let upper = GPU.to_uppercase();
    assert_eq!(parse(&upper), uuid(&upper, None), "compared without case later");
    for (id, expected) in [
        (format!("MIG-{GPU}/1/0"), legacy(1, 0, None)),
        (format!("MIG-{GPU}/13/2::7"), legacy(13, 2, Some(7))),
        ("nvidia0".into(), minor(0, None, None)),
        ("nvidia12/gi9".into(), minor(12, Some(9), None)),
        ("nvidia7/vgpu15".into(), minor(7, None, Some(15))),
        ("nvidia4294967295".into(), minor(u32::MAX, None, None)),
        ("3".into(), DeviceRef::Unread(Why::Index)),
        ("amdgpu_xcp_12".into(), DeviceRef::Unread(Why::Amd)),
        ("card0-3".into(), DeviceRef::Unread(Why::Intel)),
    ] {
        assert_eq!(parse(&id), expected, "{id}");
    }
}

/// One a line; `{G}`, `{M}` and `{P}` stand for a GPU, a MIG instance, and a legacy one's beginning.
const BROKEN: &str = include_str!("golden/broken-ids.txt");

#[test]
fn broken_forms_are_unknown_and_never_guessed() {
    let mut ids: Vec<String> = BROKEN
        .lines()
        .map(|line| {
            line.replace("{G}", GPU).replace("{M}", MIG).replace("{P}", &format!("MIG-{GPU}"))
        })
        .collect();
    assert!(ids.len() > 90, "{}", ids.len());
    ids.extend(["", " ", " nvidia0", "nvidia0 "].map(str::to_owned));
    ids.extend([" ", "\0", "::1 ", ":: 1", "::1\n"].map(|tail| format!("{GPU}{tail}")));
    ids.extend(["G", "9", "::"].map(|part| part.repeat(300)));
    ids.push(format!("{GPU}::{}", "0".repeat(300)));
    for id in ids {
        assert_eq!(parse(&id), DeviceRef::Unread(Why::UnknownForm), "{id:?}");
    }
}

proptest! {
    #[test]
    fn no_text_is_a_panic(id in "\\PC{0,80}") {
        parse(&id);
    }

    #[test]
    fn what_is_nearly_an_id_is_no_panic_and_keeps_its_place(
        id in "(GPU|MIG|nvidia|card|amdgpu_xcp_)?[-/:0-9a-fgiv]{0,60}"
    ) {
        match parse(&id) {
            DeviceRef::Uuid { uuid, replica } => {
                let again = replica.map_or(uuid.to_owned(), |replica| format!("{uuid}::{replica}"));
                prop_assert_eq!(again, id);
            }
            DeviceRef::Minor { minor, gpu_instance, share } => {
                let part = |name, part: Option<u32>| part.map(|part| format!("/{name}{part}"));
                let gi = part("gi", gpu_instance).unwrap_or_default();
                let share = part("vgpu", share).unwrap_or_default();
                prop_assert_eq!(format!("nvidia{minor}{gi}{share}"), id);
            }
            DeviceRef::LegacyMig { .. } | DeviceRef::Unread(_) => {}
        }
    }
}
