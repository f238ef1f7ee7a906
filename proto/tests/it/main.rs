//! The wire: generated code is current, frames survive the round trip, bad elements do not.

mod briefs_round_trip;
mod frames_round_trip;
mod generated_code_is_current;
