//! The decision allocates nothing per device. A process of its own: its allocator counts.
#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

mod scene;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::hint::black_box;

use gateway::trigger::assess;
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::parse;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as this function's caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as this function's caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of one decision about so many pods of so many GPUs.
fn allocations(metadata: &[(&str, &str)], pods: usize, gpus: usize) -> usize {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let trigger = parse(&metadata, &Profiles::default()).unwrap();
    let observed = scene::observed(pods, gpus);
    let before = COUNT.get();
    let verdict = black_box(assess(&trigger, &observed, &scene::NoPast, scene::NOW));
    let after = COUNT.get();
    assert!(verdict.figures.is_some(), "{verdict:?}");
    after - before
}

#[test]
fn a_decision_allocates_nothing_per_device() {
    for (name, metadata) in scene::TRIGGERS {
        let few = allocations(metadata, 64, 1);
        let many = allocations(metadata, 64, 64);
        println!("{name}: {few} allocations with 64 devices, {many} with 4,096");
        assert_eq!(few, many, "{name}");
        // Nor for each pod: what grows with them is a list or two.
        let pods = allocations(metadata, 4_096, 1);
        assert!(pods <= few + 16, "{name}: {few} with 64 pods, {pods} with 4,096");
    }
}
