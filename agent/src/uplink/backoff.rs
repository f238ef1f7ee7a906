//! Pure: how long to wait before a stream is tried again.
//!
//! Guarantees: never longer than `CAP`; after a gateway that held many sessions has gone, its
//! agents come back spread over a time that grows with their number, however often they must try.

use std::time::Duration;

/// Longest delay.
pub const CAP: Duration = Duration::from_secs(15);

/// Longest first delay where there is no crowd.
const FIRST: Duration = Duration::from_millis(500);

/// Sessions a gateway takes on per second without falling behind.
const SESSIONS_PER_SECOND: f64 = 70.0;

/// The delay before the next try.
///
/// `failures` counts the tries in a row that brought no stream, `sessions` is what the gateway
/// said it held when the last stream came up, if one ever did, and `random` is within 0 to 1.
pub fn delay(failures: u32, sessions: Option<u32>, random: f64) -> Duration {
    let spread = sessions.map_or(0.0, |sessions| f64::from(sessions) / SESSIONS_PER_SECOND);
    let doublings = failures.saturating_sub(u32::from(sessions.is_some()));
    // A gateway that is away for longer than the first try meets the same crowd at the next.
    let grown = FIRST * (1 << doublings.min(16));
    let most = grown.max(Duration::from_secs_f64(spread)).min(CAP);
    most.mul_f64(random.clamp(0.0, 1.0))
}
