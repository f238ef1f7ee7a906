//! Periods: what takes minutes in a cluster takes seconds here. Only KEDA, the HPA, the trigger's
//! own durations and the models are fast; the product's clock is the real one.

use std::time::Duration;

/// The world moves, and agents sample, this often.
pub const TICK: Duration = Duration::from_millis(200);
/// KEDA's `pollingInterval` (30 s unless set).
pub const POLL: Duration = Duration::from_secs(1);
/// The HPA's sync period (15 s): longer than the second a directory file may take to be reloaded.
pub const SYNC: Duration = Duration::from_secs(2);
/// The HPA's downscale stabilization (300 s).
pub const STABILIZATION: Duration = Duration::from_secs(6);
/// KEDA's `cooldownPeriod` (300 s).
pub const COOLDOWN: Duration = Duration::from_secs(5);
/// The trigger's `staleAfter` (10 s).
pub const STALE_AFTER: Duration = Duration::from_secs(2);
/// The trigger's `activationWindow` (60 s).
pub const ACTIVATION_WINDOW: Duration = Duration::from_secs(3);
/// From a pod's creation to Ready (minutes).
pub const MODEL_LOAD: Duration = Duration::from_secs(3);
/// From Ready to a full share of the load.
pub const SETTLE: Duration = Duration::from_millis(1_500);
/// How long the killed agent stays away.
pub const AGENT_AWAY: Duration = Duration::from_secs(6);
/// How long the gateway may take to have heard of everything.
pub const WARM_UP: Duration = Duration::from_secs(20);
