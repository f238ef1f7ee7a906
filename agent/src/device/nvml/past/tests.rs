use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

#[test]
fn each_sample_is_in_one_mean_and_the_first_mean_is_of_the_last_second() {
    let mut ring = Ring::default();
    let mut samples = vec![(1_000_000, 90.0), (5_000_000, 10.0), (5_500_000, 30.0)];
    assert_eq!(ring.take(&samples, at(0)), Some(20.0), "not the 90 of four seconds ago");
    assert_eq!(ring.ask_after(at(500)), 5_500_000);
    samples.extend([(5_800_000, 50.0), (6_000_000, 70.0)]);
    assert_eq!(ring.take(&samples, at(500)), Some(60.0), "even if older ones come again");
    assert_eq!(ring.take(&[], at(1_000)), Some(60.0), "none is newer: the mean stands");
    assert_eq!(ring.take(&[], at(2_600)), None, "but not for ever");
}

#[test]
fn a_ring_that_stands_still_is_not_taken_for_a_new_one() {
    let mut ring = Ring::default();
    let samples = [(5_000_000, 10.0)];
    assert_eq!(ring.take(&samples, at(0)), Some(10.0));
    assert_eq!(ring.ask_after(at(3_000)), 5_000_000);
    assert_eq!(ring.take(&[], at(3_000)), None);
    assert_eq!(ring.ask_after(at(3_500)), 0, "all of it, to see where it stands");
    assert_eq!(ring.take(&samples, at(3_500)), None);
    assert_eq!(ring.take(&[(5_000_000, 10.0), (9_000_000, 30.0)], at(4_000)), Some(30.0));
    assert_eq!(ring.ask_after(at(4_500)), 9_000_000);
}

#[test]
fn the_mean_is_of_all_samples_since_the_last_at_any_interval() {
    // Six a second, and a hundred of them, as drivers have it: 100 % for 4 s, 0 % for 1 s.
    let ring_at = |end_ms: u64| {
        let newest = end_ms * 6 / 1_000;
        let value = |step: u64| if step % 30 < 24 { 100.0 } else { 0.0 };
        let steps = (newest + 1).saturating_sub(100)..=newest;
        steps.map(move |step| (10_000_000 + step * 166_667, value(step))).collect::<Vec<_>>()
    };
    for interval_ms in [100, 500, 1_000, 2_000, 5_000, 10_000, 15_000] {
        let mut ring = Ring::default();
        let (mut means, mut end_ms) = (Vec::new(), 30_000);
        while means.len() < 60_000 / interval_ms {
            let now = at(i64::try_from(end_ms).unwrap());
            let after = ring.ask_after(now);
            let mut samples = ring_at(end_ms);
            samples.retain(|(stamp, _)| *stamp > after);
            means.push(ring.take(&samples, now).unwrap());
            end_ms += interval_ms as u64;
        }
        // The first is of a second only; means that stand in between weigh as much as others.
        let means = &means[1..];
        let mean = means.iter().sum::<f64>() / means.len() as f64;
        assert!((mean - 80.0).abs() < 4.0, "{interval_ms} ms: {mean}");
        if interval_ms % 5_000 == 0 {
            assert!(means.iter().all(|mean| (mean - 80.0).abs() < 0.1), "{means:?}");
        }
    }
}

#[test]
fn a_wall_clock_that_jumps_does_not_end_the_means() {
    let mut ring = Ring::default();
    assert_eq!(ring.take(&[(5_000_000_000, 10.0)], at(0)), Some(10.0));
    // Back by an hour: nothing is newer, until everything is asked for.
    assert_eq!(ring.take(&[], at(1_000)), Some(10.0));
    assert_eq!(ring.ask_after(at(2_500)), 0);
    assert_eq!(ring.take(&[(1_400_000_000, 40.0)], at(2_500)), Some(40.0));
    assert_eq!(ring.take(&[(1_400_500_000, 50.0)], at(3_000)), Some(50.0));
    // Forward by a year.
    assert_eq!(ring.take(&[(31_536_000_000_000, 60.0)], at(3_500)), Some(60.0));
}

#[test]
fn utilisations_above_100_percent_are_not_averaged() {
    let mut ring = Ring::default();
    assert_eq!(ring.take(&[(1, 4_000.0), (2, 40.0)], at(0)), Some(40.0));
    assert_eq!(ring.take(&[(3, 4_000.0)], at(500)), Some(40.0));
    assert_eq!(ring.take(&[(4, -5.0), (5, f64::NAN), (6, 60.0)], at(600)), Some(60.0));
}

#[test]
fn watts_are_the_growth_of_the_counter_over_a_second_or_the_interval() {
    let mut energy = Energy::default();
    assert_eq!(energy.watts(10_000, at(0)), None, "one reading is no rate");
    assert_eq!(energy.watts(60_000, at(500)), None, "a step more or less would be a lot");
    assert_eq!(energy.watts(210_000, at(1_000)), Some(200.0));
    assert_eq!(energy.watts(410_000, at(1_500)), Some(350.0), "since 500 ms");
    assert_eq!(energy.watts(1_410_000, at(11_500)), Some(100.0), "a longer interval");
}

#[test]
fn a_counter_that_stands_still_or_falls_gives_no_watts() {
    let mut energy = Energy::default();
    energy.watts(10_000, at(0));
    assert_eq!(energy.watts(10_000, at(1_000)), None);
    assert_eq!(energy.watts(5_000, at(2_000)), None);
    assert_eq!(energy.watts(105_000, at(3_000)), Some(100.0));
}

#[test]
fn the_throttled_share_is_of_the_last_ten_seconds() {
    let mut throttled = Throttled::default();
    assert!(throttled.by_reason().is_empty());
    let mut both = Reasons::default();
    both.insert(Throttle::Power);
    both.insert(Throttle::Heat);
    let mut heat = Reasons::default();
    heat.insert(Throttle::Heat);
    let none = Reasons::default();
    assert_eq!(throttled.percent(both, at(0)), 100.0);
    assert_eq!(throttled.percent(none, at(5_000)), 50.0);
    throttled.percent(heat, at(6_000));
    throttled.percent(none, at(6_001));
    assert_eq!(*throttled.by_reason(), [(Throttle::Power, 25.0), (Throttle::Heat, 50.0)]);
    assert_eq!(throttled.percent(none, at(16_002)), 0.0);
    assert!(throttled.by_reason().is_empty());
}
