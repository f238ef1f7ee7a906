//! Pure: how long a caller waits, as its header says (gRPC over HTTP/2: at most eight digits and
//! a unit).
//!
//! Guarantees: what is not written like that says nothing.

use std::time::Duration;

use tonic::codegen::http::header::{HeaderMap, HeaderValue};

const HEADER: &str = "grpc-timeout";
const MOST_DIGITS: usize = 8;

/// How long the caller waits for an answer, if it says so.
pub fn of_caller(headers: &HeaderMap<HeaderValue>) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = number.len() <= MOST_DIGITS && number.bytes().all(|it| it.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_waits_as_long_as_it_says_and_nonsense_says_nothing() {
        let of = |text: &str| {
            let headers = [(HEADER.parse().unwrap(), text.parse().unwrap())];
            of_caller(&headers.into_iter().collect())
        };
        assert_eq!(of("2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(of("3M"), Some(Duration::from_secs(180)));
        assert_eq!(of("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(of("50m"), Some(Duration::from_millis(50)));
        assert_eq!(of("7u"), Some(Duration::from_micros(7)));
        assert_eq!(of("0n"), Some(Duration::ZERO));
        assert!(of("99999999H").is_some());
        for text in ["", "S", "5", "-5S", "+5S", "123456789S", "5s", "5 S", "1.5S", " 1S", "soon"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of_caller(&HeaderMap::new()), None);
    }
}
