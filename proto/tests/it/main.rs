//! The wire: generated code is current, frames survive the round trip, bad elements do not.

mod frames_round_trip;
mod generated_code_is_current;
