//! Label selectors in the form that `/scale` gives them: text.
//!
//! Guarantees: reading never panics; what is not a selector is refused with the part that is not;
//! the empty selector matches nothing (an HPA refuses it too). `kube::core::Selector` has the same
//! expressions but does not read text.

use std::sync::Arc;

use kube::core::Expression;

/// Labels of one object, sorted by key.
pub type Labels = Arc<[(Arc<str>, Arc<str>)]>;

/// A label selector; all of its expressions must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Expression>);

impl Selector {
    /// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    /// With the part that cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        parts(text).into_iter().map(expression).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        !self.0.is_empty() && self.0.iter().all(|expression| holds(expression, labels))
    }

    /// Whether it can select nothing at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The value of `key`.
pub fn label<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    let at = labels.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
    Some(&labels[at].1)
}

fn holds(expression: &Expression, labels: &Labels) -> bool {
    let value = |key: &String| label(labels, key);
    match expression {
        Expression::In(key, values) => value(key).is_some_and(|value| values.contains(value)),
        Expression::NotIn(key, values) => !value(key).is_some_and(|value| values.contains(value)),
        Expression::Equal(key, wanted) => value(key) == Some(wanted),
        Expression::NotEqual(key, barred) => value(key) != Some(barred),
        Expression::Exists(key) => value(key).is_some(),
        Expression::DoesNotExist(key) => value(key).is_none(),
    }
}

/// Splits at the commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut inside = false;
    let split = text.split(|c: char| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    });
    split.map(str::trim).collect()
}

fn expression(text: &str) -> Result<Expression, String> {
    let refuse = || format!("{text:?} is not part of a label selector");
    let word = |word: &str| word_of(word).ok_or_else(refuse);
    if let Some(key) = text.strip_prefix('!') {
        return Ok(Expression::DoesNotExist(word(key)?));
    }
    if let Some((head, values)) =
        text.strip_suffix(')').and_then(|set| set.split_once('(')).map(|(h, v)| (h.trim_end(), v))
    {
        let (key, operator) = head.rsplit_once(char::is_whitespace).ok_or_else(refuse)?;
        let values = values.split(',').map(|value| value_of(value).ok_or_else(refuse));
        let values = values.collect::<Result<_, _>>()?;
        return match operator {
            "in" => Ok(Expression::In(word(key)?, values)),
            "notin" => Ok(Expression::NotIn(word(key)?, values)),
            _ => Err(refuse()),
        };
    }
    let Some((key, value)) = text.split_once('=') else {
        return Ok(Expression::Exists(word(text)?));
    };
    let value = value.strip_prefix('=').unwrap_or(value);
    let value = value_of(value).ok_or_else(refuse)?;
    match key.strip_suffix('!') {
        Some(key) => Ok(Expression::NotEqual(word(key)?, value)),
        None => Ok(Expression::Equal(word(key)?, value)),
    }
}

fn is_fit(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')
}

fn word_of(text: &str) -> Option<String> {
    value_of(text).filter(|word| !word.is_empty())
}

fn value_of(text: &str) -> Option<String> {
    let text = text.trim();
    text.chars().all(is_fit).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let mut pairs: Vec<_> = pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        pairs.sort();
        pairs.into()
    }

    #[test]
    fn every_form_selects_what_the_api_server_would_select() {
        let pod = labels(&[("app", "llama"), ("tier", "gpu"), ("empty", "")]);
        let yes = [
            "app=llama",
            "app==llama",
            " app = llama , tier = gpu ",
            "app!=other",
            "absent!=other",
            "app in (llama,other)",
            "app in ( other , llama ),tier",
            "app notin (other)",
            "absent notin (other)",
            "tier",
            "!absent",
            "empty=",
            "empty in (,x)",
        ];
        for text in yes {
            assert!(Selector::parse(text).unwrap().matches(&pod), "{text}");
        }
        let no = [
            "",
            " ",
            "app=llama-chat",
            "app=llam",
            "app!=llama",
            "app in (other)",
            "absent in (llama)",
            "app notin (llama,other)",
            "absent",
            "!app",
            "app=llama,tier=cpu",
        ];
        for text in no {
            assert!(!Selector::parse(text).unwrap().matches(&pod), "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_the_part_that_is_not() {
        for text in ["a=b,,c", "a=b,c d", "a in b", "a on (b)", "(b)", "a in (b", "=b", "!", "a>1"]
        {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
        let why = Selector::parse("app=llama,tier ~ gpu").unwrap_err();
        assert_eq!(why, "\"tier ~ gpu\" is not part of a label selector");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            drop(Selector::parse(&text));
        }
    }
}
