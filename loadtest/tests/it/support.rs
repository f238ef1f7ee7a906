//! The real binaries as children of the tests, and what they are asked.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, MetricValue, ScaledObjectRef};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// How long anything may take before a test fails; nothing is expected to take that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Builds the binaries this test belongs to, which does nothing if they are there, and finds them.
pub(crate) fn binaries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--bins", "--target-dir"]);
    cargo.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the binaries do not build");
    profile.to_owned()
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A gateway as a process, and where it listens.
pub(crate) struct Gateway {
    pub(crate) process: Process,
    pub(crate) keda: SocketAddr,
    pub(crate) uplink: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl Gateway {
    /// A gateway whose cluster is the file `directory`.
    pub(crate) fn start(binaries: &Path, folder: &TempDir, directory: &str) -> Self {
        let ports = [free_address(), free_address(), free_address()];
        Self::start_at(ports, binaries, folder, directory)
    }

    /// The same, where others may look for it: KEDA's port, the agents', and the pages.
    pub(crate) fn start_at(
        ports: [SocketAddr; 3],
        binaries: &Path,
        folder: &TempDir,
        directory: &str,
    ) -> Self {
        let [keda, uplink, http] = ports;
        let file = folder.path().join("directory.yaml");
        fs::write(&file, directory).unwrap();
        let mut command = Command::new(binaries.join("gpu-gateway"));
        command
            .args(["serve", "--http-listen", &http.to_string()])
            .args(["--keda-listen", &keda.to_string()])
            .args(["--agent-listen", &uplink.to_string()])
            .args(["--directory", &format!("file:{}", file.display())]);
        Self { process: Process::start("gpu-gateway", command, folder), keda, uplink, http }
    }

    /// The first value that KEDA would get.
    pub(crate) async fn first_answer(
        &self,
        scaled: &ScaledObjectRef,
        agents: &[Process],
    ) -> MetricValue {
        let start = Instant::now();
        loop {
            let refusal = match self.ask(scaled).await {
                Ok(value) => return value,
                Err(refusal) => refusal,
            };
            let logs = || agents.iter().map(Process::log).collect::<String>();
            let gateway = || self.process.log();
            let is_late = start.elapsed() > PATIENCE;
            assert!(!is_late, "no value, but {refusal:#}\n{}{}", gateway(), logs());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// One GetMetrics over a connection of its own.
    pub(crate) async fn ask(&self, scaled: &ScaledObjectRef) -> anyhow::Result<MetricValue> {
        let mut client = ExternalScalerClient::connect(format!("http://{}", self.keda)).await?;
        let specs = client.get_metric_spec(scaled.clone()).await?.into_inner().metric_specs;
        assert_eq!((specs.len(), specs[0].target_size_float), (1, 50.0));
        let request = GetMetricsRequest {
            scaled_object_ref: Some(scaled.clone()),
            metric_name: specs[0].metric_name.clone(),
        };
        let values = client.get_metrics(request).await?.into_inner().metric_values;
        assert_eq!(values.len(), 1, "the HPA adds up whatever it gets");
        Ok(values[0].clone())
    }

    pub(crate) async fn is_active(&self, scaled: &ScaledObjectRef) -> bool {
        let url = format!("http://{}", self.keda);
        let mut client = ExternalScalerClient::connect(url).await.unwrap();
        client.is_active(scaled.clone()).await.unwrap().into_inner().result
    }
}

/// The ScaledObject `ml/NAME` with a target of 50 % and `more` metadata.
pub(crate) fn scaled_object(name: &str, more: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata = [("targetGpuUtilization", "50")].iter().chain(more);
    ScaledObjectRef {
        namespace: "ml".into(),
        name: name.into(),
        scaler_metadata: metadata.map(|(key, value)| ((*key).into(), (*value).into())).collect(),
    }
}

/// `gpu-agent run` for `node`, pushing to `gateway`.
pub(crate) fn run_agent(binaries: &Path, gateway: &Gateway, node: &str) -> Command {
    let mut command = Command::new(binaries.join("gpu-agent"));
    command
        .args(["run", "--node", node, "--interval", "200ms"])
        .args(["--gateway", &format!("http://{}", gateway.uplink)]);
    command
}

/// A child that does not outlive the test.
pub(crate) struct Process {
    pub(crate) name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &'static str, mut command: Command, folder: &TempDir) -> Self {
        let log = folder.path().join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.unwrap();
        Self { name, child, log }
    }

    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        format!("--- {}\n{text}", self.name)
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{} does not end:\n{}", self.name, self.log());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for ended in [self.child.kill(), self.child.wait().map(drop)] {
            ended.unwrap_or_else(|error| eprintln!("{}: {error}", self.name));
        }
    }
}
