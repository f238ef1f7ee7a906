//! The real binaries as children of the tests, and what they are asked.

use std::fmt::Debug;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, MetricValue, ScaledObjectRef};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::fake_nvml::cargo;

/// How long anything may take before a test fails; nothing is expected to take that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Builds the binaries this test belongs to, which does nothing if they are there, and finds them.
pub(crate) fn binaries() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut cargo = cargo();
        cargo.args(["build", "--quiet", "--workspace", "--bins", "--target-dir"]);
        cargo.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the binaries do not build");
        profile.to_owned()
    };
    BUILT.get_or_init(build).clone()
}

pub(crate) fn free_address() -> SocketAddr {
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
        Self::start_with(binaries, folder, directory, &[])
    }

    /// The same with more options.
    pub(crate) fn start_with(
        binaries: &Path,
        folder: &TempDir,
        directory: &str,
        options: &[String],
    ) -> Self {
        let addresses = [free_address(), free_address(), free_address()];
        Self::start_on(addresses, binaries, folder, directory, options)
    }

    /// The same, where others may look for it: KEDA's port, the agents', and the pages.
    pub(crate) fn start_on(
        addresses: [SocketAddr; 3],
        binaries: &Path,
        folder: &TempDir,
        directory: &str,
        options: &[String],
    ) -> Self {
        fs::write(folder.path().join("directory.yaml"), directory).unwrap();
        let mut command = Command::new(binaries.join("gpu-gateway"));
        command.arg("serve").args(options);
        Self::start_at(addresses, "gpu-gateway", command, folder)
    }

    /// A gateway by `command`, which ends with `serve` and options, for KEDA, agents and HTTP at
    /// `addresses`; the folder's directory.yaml is its cluster.
    pub(crate) fn start_at(
        addresses: [SocketAddr; 3],
        name: &str,
        mut command: Command,
        folder: &TempDir,
    ) -> Self {
        let file = folder.path().join("directory.yaml");
        command.args(["--directory", &format!("file:{}", file.display())]);
        Self::listening_at(addresses, name, command, folder)
    }

    /// The same; `command` says where its cluster is known from.
    pub(crate) fn listening_at(
        [keda, uplink, http]: [SocketAddr; 3],
        name: &str,
        mut command: Command,
        folder: &TempDir,
    ) -> Self {
        command
            .args(["--http-listen", &http.to_string()])
            .args(["--keda-listen", &keda.to_string()])
            .args(["--agent-listen", &uplink.to_string()]);
        Self { process: Process::start(name, command, folder), keda, uplink, http }
    }

    /// Where it listens: for KEDA, agents and HTTP.
    pub(crate) fn addresses(&self) -> [SocketAddr; 3] {
        [self.keda, self.uplink, self.http]
    }

    /// Whether it says that it is ready; an error if it cannot be asked.
    pub(crate) async fn is_ready(&self) -> std::io::Result<bool> {
        Ok(get(self.http, "/readyz").await?.starts_with("HTTP/1.1 200"))
    }

    /// One page, head and body.
    pub(crate) async fn page(&self, path: &str) -> std::io::Result<String> {
        get(self.http, path).await
    }

    /// The sum of all series of `metric`.
    pub(crate) async fn metric(&self, metric: &str) -> std::io::Result<f64> {
        let page = get(self.http, "/metrics").await?;
        let values = page.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let name = series.split('{').next()?;
            (name == metric).then(|| value.parse::<f64>().unwrap())
        });
        Ok(values.sum())
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

/// GET over HTTP, head and body.
async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Asks `check` until it says yes, and returns what it says.
///
/// # Panics
/// When it has not done so within [`PATIENCE`]; the message has the last no.
pub(crate) async fn eventually<T, E: Debug>(
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let start = Instant::now();
    loop {
        match check().await {
            Ok(yes) => return yes,
            Err(no) => assert!(start.elapsed() < PATIENCE, "not so in time: {what}: {no:?}"),
        }
        sleep(Duration::from_millis(20)).await;
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
    pub(crate) name: String,
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &str, mut command: Command, folder: &TempDir) -> Self {
        let log = folder.path().join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().unwrap();
        Self { name: name.to_owned(), command, child, log }
    }

    /// Ends it as a deployment does, and starts it again.
    pub(crate) async fn restart(&mut self) {
        let status = self.terminate().await;
        assert!(status.success(), "{status}:\n{}", self.log());
        self.child = self.command.spawn().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        format!("--- {}\n{text}", self.name)
    }

    /// The files it has open.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Its resident memory in MiB.
    pub(crate) fn memory_mib(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1_024.0
    }

    /// Sends a signal, such as `STOP` or `KILL`.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
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
