//! Written objects, taken apart key by key.
//!
//! Guarantees: every complaint names the place, the bad word and what would be right; absent and
//! `null` stay two things; keys that nobody took are known at the end.

use proto::convert::MAX_NAME;
use serde_json::{Map, Value};

/// The keys of one object, and where it stands.
pub(crate) struct Fields {
    place: String,
    keys: Map<String, Value>,
}

/// A number as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Written {
    Absent,
    Null,
    Number(f64),
}

impl Fields {
    /// Opens the object that stands at `place`.
    pub(crate) fn open(place: impl Into<String>, value: Value) -> Result<Self, String> {
        let place = place.into();
        match value {
            Value::Object(keys) => Ok(Self { place, keys }),
            other => Err(format!("{place} is {}; write an object {{…}}", shown(&other))),
        }
    }

    /// Where the object stands, for complaints.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Complaints speak of `place` from now on.
    pub(crate) fn now_at(&mut self, place: String) {
        self.place = place;
    }

    /// A text that may be missing; `null` and `""` are missing too.
    pub(crate) fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        self.text_up_to(MAX_NAME, key)
    }

    /// The same with at most `max` bytes.
    pub(crate) fn text_up_to(&mut self, max: usize, key: &str) -> Result<Option<String>, String> {
        match self.keys.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) if text.len() <= max => Ok(Some(text)),
            Some(Value::String(_)) => {
                Err(format!("{}: {key} is longer than {max} bytes", self.place))
            }
            Some(other) => Err(self.bad(key, &other, "a text")),
        }
    }

    /// A text that must be there.
    pub(crate) fn needed_text(&mut self, key: &str, example: &str) -> Result<String, String> {
        self.text(key)?
            .ok_or_else(|| format!("{} has no {key}; write \"{key}\":{example}", self.place))
    }

    /// A number, `null` or nothing.
    pub(crate) fn number(&mut self, key: &str) -> Result<Written, String> {
        match self.keys.remove(key) {
            None => Ok(Written::Absent),
            Some(Value::Null) => Ok(Written::Null),
            Some(other) => match other.as_f64() {
                Some(number) => Ok(Written::Number(number)),
                None => Err(self.bad(key, &other, "a number, or null where there is none")),
            },
        }
    }

    /// A whole number from 0, where there is one.
    pub(crate) fn count(&mut self, key: &str) -> Result<Option<u32>, String> {
        let Written::Number(number) = self.number(key)? else {
            return Ok(None);
        };
        // The cast saturates; what it changes was no such number.
        let count = number as u32;
        if f64::from(count) == number {
            Ok(Some(count))
        } else {
            Err(self.bad(key, &number.into(), "a whole number from 0"))
        }
    }

    /// `true` or `false`; nothing is `false`.
    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, String> {
        match self.keys.remove(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(self.bad(key, &other, "true or false")),
        }
    }

    /// A list of at most `max`; nothing is the empty list.
    pub(crate) fn list(&mut self, key: &str, max: usize) -> Result<Vec<Value>, String> {
        match self.keys.remove(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= max => Ok(list),
            Some(Value::Array(list)) => {
                Err(format!("{}: {} {key}; at most {max} are accepted", self.place, list.len()))
            }
            Some(other) => Err(self.bad(key, &other, "a list […]")),
        }
    }

    /// Whether something other than `null` is written at `key`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|value| !value.is_null())
    }

    /// Whatever is written at `key`.
    pub(crate) fn value(&mut self, key: &str) -> Option<Value> {
        self.keys.remove(key)
    }

    /// Keys that are known and not read.
    pub(crate) fn skip(&mut self, keys: &[&str]) {
        for key in keys {
            self.keys.remove(*key);
        }
    }

    /// A sentence for every key that nobody took; `known` are the keys of such an object.
    pub(crate) fn left(self, what: &str, known: &[&str]) -> impl Iterator<Item = String> {
        self.keys.into_iter().map(move |(key, _)| {
            let meant = nearest(&key, known.iter().copied())
                .map_or_else(String::new, |good| format!("; did you mean {good:?}?"));
            format!("unknown key {key:?} of {what}{meant}")
        })
    }

    fn bad(&self, key: &str, value: &Value, right: &str) -> String {
        format!("{}: {key} is {}; write {right}", self.place, shown(value))
    }
}

/// A value as it was written, cut to what fits a message.
fn shown(value: &Value) -> String {
    const MAX: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The one of `good` that `bad` was probably meant to be.
pub(crate) fn nearest<'a>(bad: &str, good: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LIKE_ENOUGH: f64 = 0.7;
    good.into_iter()
        .map(|word| (strsim::jaro_winkler(bad, word), word))
        .filter(|(likeness, _)| *likeness >= LIKE_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word)
}
