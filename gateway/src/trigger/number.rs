//! Numbers and durations as people write them in metadata.
//!
//! Guarantees: what is accepted is finite and within its bounds. What is refused comes with the
//! reason, written to follow the key and the word: `targetValue "80%": write 80`.

use std::ops::RangeInclusive;
use std::time::Duration;

use humantime::format_duration;

/// The smallest target; KEDA prints three decimals, so anything below would become 0.000.
pub const MIN_TARGET: f64 = 0.001;
/// The largest target; still exact as a float and far inside KEDA's integer field.
pub const MAX_TARGET: f64 = 9e15;

/// Rounds to three decimals, which is all that KEDA and the HPA keep.
pub fn thousandths(value: f64) -> f64 {
    // Above this a float has no third decimal to round to.
    if value.abs() < 9e12 { (value * 1000.0).round() / 1000.0 } else { value.round() }
}

/// A finite decimal number: ASCII digits, one dot, optional sign and exponent.
pub fn decimal(text: &str) -> Result<f64, String> {
    match plain(text) {
        // Adding zero turns a negative zero into zero.
        Some(value) if value.is_finite() => Ok(value + 0.0),
        Some(_) => Err("out of range".to_owned()),
        None => Err(why_not_decimal(text)),
    }
}

/// A target per replica, rounded to three decimals.
pub fn target(text: &str) -> Result<f64, String> {
    let value = decimal(text)?;
    if value < MIN_TARGET {
        return Err(format!("must be at least {MIN_TARGET}"));
    }
    if value > MAX_TARGET {
        return Err(format!("out of range, at most {MAX_TARGET}"));
    }
    Ok(thousandths(value))
}

/// A threshold: zero or more.
pub fn threshold(text: &str) -> Result<f64, String> {
    let value = decimal(text)?;
    if value < 0.0 { Err("must be 0 or more".to_owned()) } else { Ok(value) }
}

/// A whole number within `range`.
pub fn integer(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let value = decimal(text)?;
    let (min, max) = range.into_inner();
    if value.fract() != 0.0 {
        Err("must be a whole number".to_owned())
    } else if (f64::from(min)..=f64::from(max)).contains(&value) {
        Ok(value as u32)
    } else {
        Err(format!("must be from {min} to {max}"))
    }
}

/// A duration with its unit, such as `1m30s`, within `range`.
pub fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    if decimal(text).is_ok() {
        return Err(format!("has no unit, write {text}s for seconds"));
    }
    let value = humantime::parse_duration(text)
        .map_err(|_| "not a duration such as 500ms, 30s or 1m30s".to_owned())?;
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = (format_duration(*range.start()), format_duration(*range.end()));
    Err(format!("must be from {min} to {max}"))
}

fn plain(text: &str) -> Option<f64> {
    let fits = |b| matches!(b, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E');
    text.bytes().all(fits).then(|| text.parse().ok())?
}

fn why_not_decimal(text: &str) -> String {
    let says = |number: String| plain(&number).map(|_| format!("write {number}"));
    let lower = text.to_ascii_lowercase();
    let unsigned = lower.trim_start_matches(['+', '-']);
    if matches!(unsigned, "nan" | "inf" | "infinity") {
        return "must be a finite number".to_owned();
    }
    if let Some(digits) = unsigned.strip_prefix("0x") {
        return match u32::from_str_radix(digits, 16) {
            Ok(value) => format!("hexadecimal, write {value}"),
            Err(_) => "not a number".to_owned(),
        };
    }
    if text.chars().any(|c| !c.is_ascii() && c.is_numeric()) {
        return "use the ASCII digits 0 to 9".to_owned();
    }
    text.strip_suffix('%')
        .and_then(|number| says(number.trim_ascii().to_owned()))
        .or_else(|| says(text.replace('_', "")))
        .or_else(|| comma(text))
        .unwrap_or_else(|| "not a number".to_owned())
}

/// What a single comma may have meant: a decimal point, or thousands.
fn comma(text: &str) -> Option<String> {
    let (whole, rest) = text.split_once(',')?;
    let pointed = format!("{whole}.{rest}");
    plain(&pointed)?;
    Some(match rest.len() {
        3 => format!("write {pointed} or {whole}{rest}"),
        _ => format!("write {pointed}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_decimals_are_numbers() {
        for (text, value) in
            [("80", 80.0), ("70.0", 70.0), (".5", 0.5), ("+5", 5.0), ("1e3", 1000.0), ("-0", 0.0)]
        {
            assert_eq!(decimal(text), Ok(value), "{text}");
        }
        assert!(decimal("-0").is_ok_and(f64::is_sign_positive));
    }

    #[test]
    fn anything_else_says_what_would_be_right() {
        for (text, reason) in [
            ("80%", "write 80"),
            ("80 %", "write 80"),
            ("0,8", "write 0.8"),
            ("1,500", "write 1.500 or 1500"),
            ("1,500.5", "not a number"),
            ("1_000", "write 1000"),
            ("８０", "use the ASCII digits 0 to 9"),
            ("٨٠", "use the ASCII digits 0 to 9"),
            ("NaN", "must be a finite number"),
            ("-inf", "must be a finite number"),
            ("Infinity", "must be a finite number"),
            ("1e400", "out of range"),
            ("0x50", "hexadecimal, write 80"),
            ("0xzz", "not a number"),
            ("1.2.3", "not a number"),
            ("e", "not a number"),
            ("", "not a number"),
            ("eighty", "not a number"),
        ] {
            assert_eq!(decimal(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn targets_are_bounded_and_rounded() {
        assert_eq!(target("0.0014"), Ok(0.001));
        assert_eq!(target("66.66666"), Ok(66.667));
        assert_eq!(target("9e15"), Ok(9e15));
        assert_eq!(target("8999999999999.25"), Ok(8_999_999_999_999.25));
        for text in ["0", "-5", "0.0001", "0.00099", "1e-400"] {
            assert_eq!(target(text), Err("must be at least 0.001".to_owned()), "{text}");
        }
        assert_eq!(
            target("9223372036854775808"),
            Err("out of range, at most 9000000000000000".to_owned())
        );
    }

    #[test]
    fn integers_are_whole_and_within_their_range() {
        assert_eq!(integer("10.0", 1..=20), Ok(10));
        for (text, reason) in [
            ("0.5", "must be a whole number"),
            ("0", "must be from 1 to 20"),
            ("-1", "must be from 1 to 20"),
            ("99999999999999999999", "must be from 1 to 20"),
            ("ten", "not a number"),
        ] {
            assert_eq!(integer(text, 1..=20), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        let hour = Duration::ZERO..=Duration::from_hours(1);
        for (text, millis) in
            [("10s", 10_000), ("1m30s", 90_000), ("500ms", 500), ("0s", 0), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text, hour.clone()), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, reason) in [
            ("30", "has no unit, write 30s for seconds"),
            ("0", "has no unit, write 0s for seconds"),
            ("2h", "must be from 0s to 1h"),
            ("5M", "must be from 0s to 1h"),
            ("-5s", "not a duration such as 500ms, 30s or 1m30s"),
            ("soon", "not a duration such as 500ms, 30s or 1m30s"),
            ("99999999999999999999s", "not a duration such as 500ms, 30s or 1m30s"),
        ] {
            assert_eq!(duration(text, hour.clone()), Err(reason.to_owned()), "{text}");
        }
    }
}
