//! Pure: what a GPU costs an hour, what a kilowatt-hour weighs, and what an idle GPU draws.
//!
//! Guarantees: a model is found by whole words, the longest name first; what was not given is not
//! known, and never free.

use std::str::FromStr;

/// What was given on the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tariff {
    /// Price of a GPU-hour by model.
    pub prices: Vec<OfModel>,
    /// Watts that a GPU draws when it does nothing, by model.
    pub idle_watts: Vec<OfModel>,
    /// Grams of CO2 equivalent for a kilowatt-hour.
    pub carbon_intensity: Option<f64>,
}

/// A figure of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct OfModel {
    /// Words of the device's name, for example `H100`.
    pub model: String,
    /// The figure.
    pub value: f64,
}

impl FromStr for OfModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((model, value)) = text.rsplit_once('=') else {
            // The list is cut at its commas before it comes here.
            let comma = match text.trim().parse::<f64>() {
                Ok(_) => "; a comma parts one model from the next, so write 2.50, not 2,50",
                Err(_) => "",
            };
            return Err(format!("write MODEL=NUMBER, for example H100=2.50{comma}"));
        };
        if words(model).next().is_none() {
            return Err(
                "the model is empty; write a word of the device's name, such as H100".into()
            );
        }
        Ok(Self { model: model.trim().to_owned(), value: amount(value)? })
    }
}

/// A number from 0.
///
/// # Errors
/// When it is none.
pub fn amount(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim().parse().ok();
    let number = number.filter(|number| (0.0..=1e9).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from 0 to 1000000000; write such as 2.50"))
}

impl Tariff {
    /// Price of an hour of a GPU of that name.
    pub fn price(&self, name: &str) -> Option<f64> {
        find(&self.prices, name)
    }

    /// What such a GPU draws when it does nothing.
    pub fn idle_watts(&self, name: &str) -> Option<f64> {
        find(&self.idle_watts, name)
    }

    /// What so many joules weigh.
    pub fn grams(&self, joules: f64) -> Option<f64> {
        Some(joules / 3.6e6 * self.carbon_intensity?)
    }
}

fn find(known: &[OfModel], name: &str) -> Option<f64> {
    let name: Vec<_> = words(name).collect();
    let matching = known.iter().filter(|known| {
        let model: Vec<_> = words(&known.model).collect();
        name.windows(model.len()).any(|part| part == model)
    });
    matching.max_by_key(|known| words(&known.model).count()).map(|known| known.value)
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_whole_words_and_the_longest_wins() {
        let prices = ["A100=1.5", "a100-sxm4-80gb=2", "H100=3"].map(|text| text.parse().unwrap());
        let tariff = Tariff { prices: prices.into(), ..Tariff::default() };
        for (name, right) in [
            ("NVIDIA A100-SXM4-80GB", Some(2.0)),
            ("NVIDIA A100-PCIE-40GB", Some(1.5)),
            ("NVIDIA RTX A1000", None),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Some(3.0)),
            ("", None),
        ] {
            assert_eq!(tariff.price(name), right, "{name}");
        }
        assert_eq!(tariff.grams(3.6e6), None);
    }

    #[test]
    fn what_is_no_price_is_refused() {
        for bad in ["H100", "=3", "H100=", "H100=NaN", "H100=-1", "H100=inf", "H100=1,5", " =1"] {
            assert!(bad.parse::<OfModel>().is_err(), "{bad}");
        }
        assert_eq!("L40S = 0.8".parse(), Ok(OfModel { model: "L40S".into(), value: 0.8 }));
    }
}
