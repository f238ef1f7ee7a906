//! Whether the pages of inference engines can be read.

use std::time::Duration;

use shared::reading::Reading;
use shared::time::Timestamp;

use super::{Broken, quoted};
use crate::engine::address::PageAddress;
use crate::engine::reader::Reader;
use crate::engine::scrape::{Limits, fetch};

/// Whether each of `pages` is an engine's.
///
/// # Errors
/// The first one that is not.
pub async fn engines(pages: &[PageAddress]) -> Result<String, Broken> {
    let mut said = Vec::new();
    for address in pages {
        match look(address).await {
            Ok(found) => said.push(format!("{address}: {found}")),
            Err(why) => {
                let url = quoted(address.to_string().as_ref());
                let next = format!("curl -sS -i -H 'Accept: text/plain' {url}");
                return Err(Broken::new(format!("{address}: {why}"), next));
            }
        }
    }
    Ok(said.join("; "))
}

/// The engine, and what it says at once; rates and means take two scrapes.
async fn look(address: &PageAddress) -> Result<String, String> {
    let text = fetch(address.ip, &address.page, Limits::default()).await?;
    let mut reader = Reader::new(Duration::ZERO);
    let readings = reader.read(&text, None, &["".into()], Timestamp::START)?;
    let values = readings.iter().flat_map(|readings| readings.iter());
    let values = values.filter_map(|(metric, reading)| match reading {
        Reading::Ok(value) => Some(format!("{metric} {value}{}", metric.unit().symbol())),
        Reading::Unsupported | Reading::Failed(_) => None,
    });
    let values: Vec<_> = values.collect();
    let title = reader.engine().unwrap_or("an engine");
    match values.is_empty() {
        true => Ok(format!("{title}, with no level to show at once")),
        false => Ok(format!("{title}, {}", values.join(", "))),
    }
}
