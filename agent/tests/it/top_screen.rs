//! `top` without a terminal: rows, order, filter, keys and screens of every size.

use std::sync::Arc;
use std::time::Duration;

use agent::frame::Taken;
use agent::local::top::Head;
use agent::local::top::history::{DEPTH, History, Whose};
use agent::local::top::page::frame;
use agent::local::top::state::{Key, Sort, State};
use agent::local::top::text::plain;
use agent::local::view::View;
use proptest::prelude::*;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use shared::frame::{Engine, EngineSample};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

const NODE: &str = include_str!("golden/node.jsonl");
const STALE_AFTER: Duration = Duration::from_secs(10);

fn head() -> Head {
    Head { of: "n".into(), interval: Duration::from_millis(500), colours: true }
}

fn taken(text: &str) -> Taken {
    Taken { frame: frame(text, None).unwrap(), at: Timestamp::START, kubelet: None }
}

/// What is drawn on `height` × `width` cells.
fn drawn(taken: &Taken, state: &mut State, (height, width): (u16, u16)) -> String {
    let view = View::of(taken, taken.at, STALE_AFTER);
    let mut history = History::default();
    history.add(&view);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    head().draw(&view, &history, state, &mut buffer);
    plain(&buffer)
}

fn press(taken: &Taken, state: &mut State, keys: impl IntoIterator<Item = Key>) {
    let view = View::of(taken, taken.at, STALE_AFTER);
    for key in keys {
        head().press(&view, state, key, 24);
    }
}

fn device(index: usize, more: &str) -> String {
    format!(r#"{{"uuid":"GPU-{index}","index":{index},"name":"NVIDIA H200"{more}}}"#)
}

fn node(devices: &[String]) -> Taken {
    taken(&format!(r#"{{"at_ms":0,"devices":[{}]}}"#, devices.join(",")))
}

#[test]
fn nothing_one_and_many_devices_are_drawn() {
    for (count, said) in [(0, "0 GPUs"), (1, "1 GPU "), (8, "8 GPUs"), (16, "16 GPUs")] {
        let all: Vec<_> = (0..count).map(|index| device(index, "")).collect();
        let text = drawn(&node(&all), &mut State::default(), (40, 100));
        assert!(text.contains(said), "{text}");
        assert_eq!(text.matches(" H200 ").count(), count, "{text}");
        assert_eq!(text.contains("nothing to show"), count == 0, "{text}");
    }
}

#[test]
fn what_is_old_says_so_and_what_is_too_old_is_a_failure() {
    let taken = node(&[device(0, r#","gpu_utilization":55"#)]);
    let seen = |seconds| {
        let view = View::of(&taken, taken.at + Duration::from_secs(seconds), STALE_AFTER);
        head().plain(&view, 120)
    };
    let (new, old, gone) = (seen(1), seen(5), seen(60));
    assert!(new.contains(" 55 ") && !new.contains("s old"), "{new}");
    assert!(old.contains(" 55 ") && old.contains("(5 s old)"), "{old}");
    assert!(!gone.contains(" 55 ") && gone.contains("! not read for 60 s"), "{gone}");
}

#[test]
fn the_five_things_that_are_no_number_look_different() {
    let holders =
        r#"[{"namespace":"a","pod":"guess","share":0.5,"estimated":true,"source":"equal"},
        {"namespace":"a","pod":"thief","source":"process","gpu_utilization":0,"undeclared":true},
        {"namespace":"a","pod":"untold","source":"process"}]"#
            .replace('\n', "");
    let text = drawn(
        &node(&[device(
            0,
            &format!(r#","gpu_utilization":0,"power_draw":null,"holders":{holders}"#),
        )]),
        &mut State::default(),
        (12, 200),
    );
    let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap().to_owned();
    let own = line("GPU 0");
    let cells: Vec<_> = own.split_whitespace().collect();
    assert!(cells.contains(&"0") && cells.contains(&"!") && cells.contains(&"-"), "{own}");
    assert!(line("guess").contains("~50%"), "{text}");
    assert!(line("thief").contains("process*"), "{text}");
    assert!(line("untold").contains('?'), "{text}");
}

#[test]
fn orders_are_turned_round_and_what_is_unknown_stays_last() {
    let all = [("0", "30"), ("1", "null"), ("2", "90"), ("3", "60")]
        .map(|(at, load)| device(at.parse().unwrap(), &format!(r#","gpu_utilization":{load}"#)));
    let taken = node(&all);
    let mut state = State::default();
    let mut order = |keys: &str| {
        press(&taken, &mut state, keys.chars().map(Key::Char));
        let text = drawn(&taken, &mut state, (20, 100));
        let names = text.lines().filter_map(|line| line.get(2..)?.strip_prefix("GPU "));
        names.map(|name| name[..1].to_owned()).collect::<String>()
    };
    assert_eq!(order(""), "0123");
    assert_eq!(order("r"), "3210");
    assert_eq!(order("u"), "2301");
    assert_eq!(order("u"), "0321");
    assert_eq!(order("i"), "0123");
    for sort in Sort::ALL.iter().skip(1).chain(&Sort::ALL[..1]) {
        assert_eq!(order("s").len(), 4);
        assert!(text_of(*sort).contains(sort.key().1));
    }
}

fn text_of(sort: Sort) -> String {
    drawn(&node(&[]), &mut State { sort, ..State::default() }, (20, 100))
}

#[test]
fn the_selection_stays_on_its_device_through_every_order() {
    let taken = taken(NODE.lines().last().unwrap());
    let mut state = State::default();
    press(&taken, &mut state, [Key::Down, Key::Down]);
    let selected = state.selected.clone();
    for key in "uumptnwsssr".chars() {
        press(&taken, &mut state, [Key::Char(key)]);
        let text = drawn(&taken, &mut state, (12, 60));
        assert_eq!(state.selected, selected);
        assert!(text.lines().any(|line| line.starts_with("> GPU 1")), "{key}: {text}");
    }
}

#[test]
fn a_filter_keeps_the_device_of_what_it_finds() {
    let taken = taken(NODE.lines().last().unwrap());
    for (filter, found, not) in [
        ("AI/C", "MIG 2", "ai/d"),
        ("gpu-77000000-0000-0000-0000-000000000003", "GPU is lost", "GPU 4"),
        ("no holder", "GPU 4", "GPU 0"),
        ("estimated", "ai/d", "ai/vllm"),
        ("failed", "GPU is lost", "ai/c"),
        ("nobody", "GPU 1", "ai/a "),
    ] {
        let mut state = State { filter: filter.into(), ..State::default() };
        let text = drawn(&taken, &mut state, (24, 100));
        assert!(text.contains(found) && !text.contains(not), "{filter}: {text}");
    }
    let mut state = State { filter: "nothing like it".into(), ..State::default() };
    let text = drawn(&taken, &mut state, (24, 100));
    assert!(text.contains("nothing has the filter in it"), "{text}");
}

#[test]
fn the_past_is_bounded_and_forgets_what_is_gone() {
    let one = node(&[device(0, r#","gpu_utilization":50"#)]);
    let mut history = History::default();
    for _ in 0..DEPTH + 10 {
        history.add(&View::of(&one, one.at, STALE_AFTER));
    }
    let whose = Whose::Device("GPU-0".into());
    assert_eq!(history.of(&whose, 0).count(), DEPTH);
    assert!(history.of(&whose, 2).all(|power| power.is_none()), "unknown is no zero");
    let other = node(&[device(1, "")]);
    history.add(&View::of(&other, other.at, STALE_AFTER));
    assert_eq!(history.of(&whose, 0).count(), 0);
}

#[test]
fn an_engine_that_holds_no_device_here_is_still_shown() {
    let mut taken = node(&[device(0, "")]);
    let mut inventory = (*taken.frame.inventory).clone();
    let pod = PodKey::new("ai", "elsewhere");
    inventory.engines.push(Engine { pod, uid: None, labels: r#"model="a""#.into() });
    taken.frame.inventory = Arc::new(inventory);
    let readings = [(Metric::RequestsWaiting, Reading::Ok(7.0))].into_iter().collect();
    taken.frame.sample.engines.push(Some(EngineSample { age: Duration::ZERO, readings }));
    let text = drawn(&taken, &mut State::default(), (20, 120));
    let line = text.lines().find(|line| line.contains("ENGINE ai/elsewhere")).unwrap();
    assert!(line.contains(" 7 "), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_size_no_key_and_no_text_breaks_the_screen(
        height in 0u16..60,
        width in 0u16..310,
        keys in proptest::collection::vec(prop_oneof![
            any::<char>().prop_map(Key::Char),
            proptest::char::range(' ', '~').prop_map(Key::Char),
            Just(Key::Up), Just(Key::Down), Just(Key::PageUp), Just(Key::PageDown),
            Just(Key::Home), Just(Key::End), Just(Key::Enter), Just(Key::Escape),
            Just(Key::Backspace), Just(Key::Erase),
        ], 0..30),
        name in any::<String>(),
    ) {
        let mut state = State::default();
        let mut text = taken(NODE.lines().last().unwrap());
        let mut inventory = (*text.frame.inventory).clone();
        inventory.devices[0].name = name.as_str().into();
        inventory.devices[1].holders[0].container = name.as_str().into();
        inventory.reason = Some(name.as_str().into());
        text.frame.inventory = Arc::new(inventory);
        let view = View::of(&text, text.at, STALE_AFTER);
        for key in keys {
            head().press(&view, &mut state, key, height);
            let shown = drawn(&text, &mut state, (height, width));
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
        }
        let printed = head().plain(&view, width);
        prop_assert!(!printed.chars().any(|c| c.is_control() && c != '\n'), "{printed:?}");
    }
}
