//! Which series count: `name=value,name=value`.

use std::fmt;

use super::Labels;

/// Labels that a series must have, ordered by name; none of them admit every series.
///
/// Its text is the canonical form of `engineLabels` and `demandLabels`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Matchers(Vec<(String, String)>);

impl Matchers {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let mut labels = Vec::new();
        for pair in text.split(',') {
            let Some((name, value)) = pair.split_once('=') else {
                return Err("write name=value,name=value".to_owned());
            };
            let (name, value) = (name.trim_ascii(), value.trim_ascii());
            if name.is_empty() {
                return Err("a label name is empty".to_owned());
            }
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if !name.bytes().all(fits) || name.as_bytes()[0].is_ascii_digit() {
                return Err("a label name has only letters, digits and _".to_owned());
            }
            if value.contains('"') {
                return Err("write label values without quotes".to_owned());
            }
            labels.push((name.to_owned(), value.to_owned()));
        }
        labels.sort();
        match labels.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("label {} is there twice", pair[0].0)),
            None => Ok(Self(labels)),
        }
    }

    /// Whether `labels` has all of them. A label that is not there has the empty value, as in
    /// Prometheus.
    pub fn admit(&self, labels: Labels<'_>) -> bool {
        self.0.iter().all(|(name, value)| labels.get(name).as_deref().unwrap_or("") == value)
    }

    /// Names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether every series is admitted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, String)> for Matchers {
    /// For labels that were checked before; of two with one name the last wins.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        let labels: std::collections::BTreeMap<_, _> = labels.into_iter().collect();
        Self(labels.into_iter().collect())
    }
}

impl fmt::Display for Matchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}
