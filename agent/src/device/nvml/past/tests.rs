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
    assert_eq!(ring.ask_after(at(3_000)), 0, "all of it, to see where it stands");
    assert_eq!(ring.take(&samples, at(3_000)), None);
}

#[test]
fn a_wall_clock_that_jumps_does_not_end_the_means() {
    let mut ring = Ring::default();
    assert_eq!(ring.take(&[(5_000_000_000, 10.0)], at(0)), Some(10.0));
    // Back by an hour: nothing is newer, until everything is asked for.
    assert_eq!(ring.take(&[], at(1_000)), Some(10.0));
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
}

#[test]
fn watts_are_the_growth_of_the_counter_over_a_second_or_the_interval() {
    let mut energy = Energy::default();
    assert_eq!(energy.watts(10_000, at(0)), None, "one reading is no rate");
    assert_eq!(energy.watts(60_000, at(500)), Some(100.0));
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
    let mut throttle = Throttle::default();
    assert_eq!(throttle.percent(true, at(0)), 100.0);
    assert_eq!(throttle.percent(false, at(5_000)), 50.0);
    assert_eq!(throttle.percent(false, at(10_001)), 0.0);
}
