//! Pure: when a certificate ends.
//!
//! Guarantees: any bytes are looked at without a panic; what is not a certificate has no end.

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `notAfter` in seconds since 1970; `None` where it cannot be read.
pub fn ends(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version may be left out.
    if rest.first() == Some(&EXPLICIT_VERSION) {
        rest = element(rest)?.2;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (_, _, after) = element(validity)?;
    let (kind, text, _) = element(after)?;
    seconds(kind, std::str::from_utf8(text).ok()?)
}

/// One DER element: its tag, what is in it, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.is_empty() || digits.len() > 4 {
            return None;
        }
        (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
    };
    let (inside, after) = rest.split_at_checked(length)?;
    Some((tag, inside, after))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn seconds(kind: u8, text: &str) -> Option<i64> {
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (kind, digits.len()) {
        (UTC_TIME, 12) => {
            let year: i64 = digits[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let pair = |at: usize| rest[at..at + 2].parse::<i64>().ok();
    let (month, day, hour, minute, second) = (pair(0)?, pair(2)?, pair(4)?, pair(6)?, pair(8)?);
    // Days since 1970 by the civil calendar, with years that begin in March.
    let year = year - i64::from(month <= 2);
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + in_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::{GENERALIZED_TIME, UTC_TIME, ends, seconds};

    #[test]
    fn both_ways_to_write_a_time() {
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "240229120000Z"), Some(1_709_208_000));
        assert_eq!(seconds(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        for broken in ["", "Z", "24022912000Z", "2402291200+0Z", "20500101000000"] {
            assert_eq!(seconds(UTC_TIME, broken), None, "{broken}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x80, 1]] {
            assert_eq!(ends(&bytes.into()), None);
        }
    }
}
