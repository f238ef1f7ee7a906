//! Agents and clients that come and go leave nothing behind: no session, no stream, no connection,
//! no file, no series, no memory. `examples/soak.rs` looks for longer.

use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::restarts::{agents, directory};
use crate::support::{Gateway, binaries, eventually, scaled_object};

const AGENTS: usize = 150;
const CLIENTS: usize = 40;
/// After these rounds everything that is kept at all is there.
const WARM_UP: usize = 3;
const ROUNDS: usize = 10;
/// How much memory may grow for reasons of the allocator; a few KiB kept of each connection are more.
const ALLOWED: f64 = 1.08;

/// Agents and clients come, and all of them leave.
async fn round(gateway: &Gateway, number: usize) {
    let sessions = async |wanted: usize| match gateway.metric("gpu_gateway_agent_sessions").await {
        Ok(open) if open == wanted as f64 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let agents = agents(AGENTS, gateway.uplink);
    eventually("all agents are there", async || sessions(AGENTS).await).await;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        // Another trigger each time.
        let name = format!("name-{number}-{client}");
        let object = scaled_object("llm-so", &[("metricName", &name)]);
        let client = Client::new(gateway.keda, object);
        eventually("the value is known", async || match client.value().await {
            Ok(600.0) => Ok(()),
            other => Err(other),
        })
        .await;
        clients.push((client.stream().await.unwrap(), client));
    }
    drop((agents, clients));
    for (metric, left) in [
        ("gpu_gateway_agent_sessions", 0.0),
        ("gpu_gateway_rpc_streams", 0.0),
        // The one that asks.
        ("gpu_gateway_connections", 1.0),
    ] {
        eventually(metric, async || match gateway.metric(metric).await {
            Ok(value) if value == left => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_clients_that_come_and_go_leave_nothing_behind() {
    let (binaries, folder) = (binaries(), tempfile::tempdir().unwrap());
    let gateway = Gateway::start(&binaries, &folder, &directory());
    let mut rows = Vec::new();
    for number in 0..ROUNDS {
        round(&gateway, number).await;
        sleep(Duration::from_millis(100)).await;
        let series = gateway.metric("gpu_gateway_metrics_series").await.unwrap();
        // The directory's file is opened five times a second: of several looks the least.
        let mut files = usize::MAX;
        for _ in 0..4 {
            files = files.min(gateway.process.open_files());
            sleep(Duration::from_millis(30)).await;
        }
        rows.push((gateway.process.memory_mib(), series, files));
        println!("round {number}: MiB, series, files: {:?}", rows[number]);
    }
    let (early, late) = (&rows[WARM_UP..2 * WARM_UP], &rows[ROUNDS - WARM_UP..]);
    let most = |rows: &[(f64, f64, usize)], of: fn(&(f64, f64, usize)) -> f64| {
        rows.iter().map(of).fold(0.0, f64::max)
    };
    for (what, of, allowed) in [
        ("memory", (|row| row.0) as fn(&(f64, f64, usize)) -> f64, ALLOWED),
        ("series", |row| row.1, 1.0),
        ("files", |row| row.2 as f64, 1.0),
    ] {
        let (before, after) = (most(early, of), most(late, of));
        assert!(after <= before * allowed, "{what} grew from {before} to {after}: {rows:?}");
    }
}
