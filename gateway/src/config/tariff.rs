//! Flags about what GPUs cost.

use clap::Args;

use crate::ledger::tariff::{OfModel, Tariff, amount};

/// What GPUs cost, for the ledger.
#[derive(Clone, Debug, Default, Args)]
pub struct TariffArgs {
    /// Price of an hour of a GPU whose name has that word, such as H100=2.50; the currency is
    /// yours. Cost is not known where a GPU has no price
    #[arg(long, env = "GPU_GATEWAY_GPU_PRICE", value_delimiter = ',', value_name = "MODEL=PRICE")]
    pub gpu_price: Vec<OfModel>,
    /// Watts that a GPU whose name has that word draws when it does nothing; learned if not given
    #[arg(
        long,
        env = "GPU_GATEWAY_GPU_IDLE_WATTS",
        value_delimiter = ',',
        value_name = "MODEL=WATTS"
    )]
    pub gpu_idle_watts: Vec<OfModel>,
    /// Grams of CO2 equivalent for a kilowatt-hour
    #[arg(long, env = "GPU_GATEWAY_CARBON_INTENSITY", value_name = "GRAMS", value_parser = amount)]
    pub carbon_intensity: Option<f64>,
}

impl From<TariffArgs> for Tariff {
    fn from(args: TariffArgs) -> Self {
        Self {
            prices: args.gpu_price,
            idle_watts: args.gpu_idle_watts,
            carbon_intensity: args.carbon_intensity,
        }
    }
}
