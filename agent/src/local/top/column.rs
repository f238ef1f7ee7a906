//! Pure: the width of a screen → the columns on it.
//!
//! Guarantees: a narrower screen has the columns of a wider one and no other, left out in the order
//! of `BY_WEIGHT` from its end; names keep the room they need as long as they can.

/// A column of the table, in the order of the screen; the name stands before all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The holder's share of the device.
    Share,
    /// How the holder is known.
    Source,
    /// `gpu_utilization`.
    Utilization,
    /// The newest of it, as a sparkline.
    Trend,
    /// `memory_used_mib` and the device's total.
    Memory,
    /// `memory_used_percent`.
    MemoryPercent,
    /// `temperature`.
    Temperature,
    /// `power_draw`.
    Power,
    /// `sm_clock_mhz`.
    Frequency,
    /// `throttled_percent`.
    Throttled,
    /// `sm_activity`.
    Sm,
    /// `tensor_activity`.
    Tensor,
    /// `requests_waiting`.
    Waiting,
    /// `requests_running`.
    Running,
    /// `kv_cache_usage`.
    Cache,
    /// `token_throughput`.
    Tokens,
    /// `request_rate`.
    Requests,
    /// `time_to_first_token_ms`.
    FirstToken,
    /// `queue_wait_ms`.
    QueueWait,
}

/// Every column, the last to go first.
pub const BY_WEIGHT: [Column; COLUMNS] = [
    Column::Utilization,
    Column::Share,
    Column::Memory,
    Column::Waiting,
    Column::Power,
    Column::Temperature,
    Column::Source,
    Column::Running,
    Column::Cache,
    Column::Tokens,
    Column::FirstToken,
    Column::Trend,
    Column::Throttled,
    Column::Frequency,
    Column::MemoryPercent,
    Column::Sm,
    Column::Tensor,
    Column::Requests,
    Column::QueueWait,
];

/// How many there are.
pub const COLUMNS: usize = 19;
/// The least cells that names are left with.
const NARROWEST: usize = 20;
/// The most cells a sparkline grows to.
const WIDEST_TREND: usize = 40;

impl Column {
    /// What stands above it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Share => "SHARE",
            Self::Source => "SOURCE",
            Self::Utilization => "UTIL%",
            Self::Trend => "TREND",
            Self::Memory => "MEM GiB",
            Self::MemoryPercent => "MEM%",
            Self::Temperature => "°C",
            Self::Power => "WATT",
            Self::Frequency => "MHz",
            Self::Throttled => "THROT%",
            Self::Sm => "SM%",
            Self::Tensor => "TENS%",
            Self::Waiting => "WAIT",
            Self::Running => "RUN",
            Self::Cache => "KV%",
            Self::Tokens => "TOK/s",
            Self::Requests => "REQ/s",
            Self::FirstToken => "TTFT ms",
            Self::QueueWait => "QUEUE ms",
        }
    }

    /// Its cells, without the one that keeps it from its neighbour.
    fn width(self) -> usize {
        match self {
            Self::Share | Self::Utilization | Self::MemoryPercent | Self::Frequency | Self::Sm => 5,
            Self::Power | Self::Waiting | Self::Running | Self::Cache | Self::Tensor => 5,
            Self::Temperature => 4,
            Self::Throttled => 6,
            Self::Requests | Self::Tokens | Self::FirstToken => 7,
            Self::QueueWait => 8,
            Self::Source | Self::Trend => 10,
            Self::Memory => 11,
        }
    }

    /// Whether it is of an inference engine.
    fn is_of_engine(self) -> bool {
        use Column as C;
        matches!(
            self,
            C::Waiting
                | C::Running
                | C::Cache
                | C::Tokens
                | C::Requests
                | C::FirstToken
                | C::QueueWait
        )
    }

    /// Whether what is in it starts at its left.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Source | Self::Trend)
    }
}

/// What is known of the rows before the columns are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Cells of the longest name.
    pub name: usize,
    /// Whether any engine is read.
    pub engines: bool,
    /// Whether there is a past to show.
    pub trend: bool,
}

/// The columns of one screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Cells of the names.
    pub name: usize,
    /// The others with their cells, in the order of the screen.
    pub others: Vec<(Column, usize)>,
}

/// The columns for a screen of `width` cells.
pub fn choose(width: usize, wishes: Wishes) -> Columns {
    let name = wishes.name.clamp(NARROWEST, (width * 2 / 5).max(NARROWEST));
    let mut free = width.saturating_sub(name);
    let mut others = Vec::new();
    for column in BY_WEIGHT {
        let is_empty = column.is_of_engine() && !wishes.engines;
        if is_empty || (column == Column::Trend && !wishes.trend) {
            continue;
        }
        let Some(left) = free.checked_sub(column.width() + 1) else { break };
        free = left;
        others.push((column, column.width()));
    }
    others.sort_by_key(|(column, _)| *column as usize);
    // What is left over: names first, then the past.
    let more = free.min(wishes.name.saturating_sub(name));
    free -= more;
    if let Some((_, trend)) = others.iter_mut().find(|(column, _)| *column == Column::Trend) {
        *trend += free.min(WIDEST_TREND - *trend);
    }
    Columns { name: (name + more).min(width), others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_columns_that_fit_and_a_wider_one_has_no_fewer() {
        for (engines, trend, name) in [(true, true, 30), (false, true, 5), (true, false, 300)] {
            let mut before = 0;
            for width in 0..400 {
                let chosen = choose(width, Wishes { name, engines, trend });
                let used: usize = chosen.others.iter().map(|(_, cells)| cells + 1).sum();
                assert!(chosen.name + used <= width.max(NARROWEST), "{width}: {chosen:?}");
                assert!(chosen.others.len() >= before || name > NARROWEST, "{width}: {chosen:?}");
                let kept = BY_WEIGHT.iter().filter(|column| trend || **column != Column::Trend);
                let kept = kept.filter(|column| engines || !column.is_of_engine());
                let kept: Vec<_> = kept.take(chosen.others.len()).collect();
                assert!(chosen.others.iter().all(|(column, _)| kept.contains(&column)));
                before = chosen.others.len();
            }
        }
    }

    #[test]
    fn every_column_has_its_place_and_room_for_its_title() {
        for place in 0..COLUMNS {
            assert!(BY_WEIGHT.iter().any(|column| *column as usize == place));
        }
        for column in BY_WEIGHT {
            assert!(column.title().chars().count() <= column.width(), "{column:?}");
        }
    }
}
