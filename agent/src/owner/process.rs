//! Pids on devices → the pods they run in; the only reader of `/proc`.
//!
//! Guarantees: a process is told from another that got its pid later by its start time, and is
//! read once; reads are bounded and an ended process is no error. Where this agent does not see
//! the host's processes nothing is read at all, because the same number is another process here.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shared::brief::{Brief, BriefedPod};
use shared::identity::{PodKey, PodUid};
use shared::time::Timestamp;

use super::cgroup::{Place, place};
use super::podlogs;
use crate::device::{Observation, Processes};

/// Bytes read of any file.
const MAX_BYTES: u64 = 64 * 1_024;
/// The namespace that the driver counts in: `PROC_PID_INIT_INO` of the kernel.
const HOST_NAMESPACE: &str = "pid:[4026531836]";
/// How the MPS server and its control daemon are called, cut to what `comm` holds.
const MPS: &str = "nvidia-cuda-mps";
/// Time between two looks at the folder of logs.
const LOGS_AGAIN: Duration = Duration::from_secs(5);

/// Where a process runs, as far as this node can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// In a pod.
    Pod(PodProcess),
    /// In no pod, or in one that has finished.
    Stranger,
    /// It cannot be told: why.
    Unknown(Arc<str>),
    /// It serves the processes of pods through MPS; what they use is theirs.
    Mps,
}

/// A process in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    /// The pod's UID; of a static pod that nobody knows, its config hash.
    pub uid: PodUid,
    /// The pod, where its name is known.
    pub pod: Option<PodKey>,
    /// The container's name, where known.
    pub container: Option<Arc<str>>,
}

/// Every process that was looked at in a tick. One that has ended is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOwners {
    /// By pid.
    pub occupants: HashMap<u32, Occupant>,
    /// Why no process can be told at all.
    pub trouble: Option<Arc<str>>,
    /// Whether processes came or went since the tick before.
    pub changed: bool,
}

impl ProcessOwners {
    /// Those of a node whose processes nobody looks at.
    pub fn unread() -> Self {
        let trouble = Some("nobody looks where they run".into());
        Self { occupants: HashMap::new(), trouble, changed: false }
    }
}

/// The processes of a node.
#[derive(Debug)]
pub struct Procfs {
    root: PathBuf,
    logs: Option<PathBuf>,
    /// Checked once.
    trouble: Option<Option<Arc<str>>>,
    entries: HashMap<u32, Entry>,
    names: Names,
    owners: ProcessOwners,
}

#[derive(Debug)]
struct Entry {
    /// In clock ticks after the start of the machine.
    started: u64,
    /// What was read of it; the error where that was not possible.
    said: Result<Said, Arc<str>>,
}

#[derive(Debug)]
struct Said {
    cgroup: Box<str>,
    is_mps: bool,
}

impl Procfs {
    /// The processes under `root`, usually `/proc`; names of pods that nobody else knows are
    /// looked up in `logs`, usually `/var/log/pods`.
    pub fn new(root: PathBuf, logs: Option<PathBuf>) -> Self {
        Self {
            root,
            logs,
            trouble: None,
            entries: HashMap::new(),
            names: Names::default(),
            owners: ProcessOwners::unread(),
        }
    }

    /// Whose the processes on the observed devices are.
    pub fn look(
        &mut self,
        observation: &Observation,
        brief: Option<&Arc<Brief>>,
        now: Timestamp,
    ) -> &ProcessOwners {
        let listed = pids(observation);
        let check = || namespace(&self.root).err().map(Into::into);
        self.owners.trouble = self.trouble.get_or_insert_with(check).clone();
        self.owners.changed = self.owners.trouble.is_none() && self.read(&listed);
        if self.owners.trouble.is_none() && self.entries.is_empty() && !listed.is_empty() {
            // They would all be idle, and cannot all have ended at once.
            self.owners.trouble =
                Some(format!("none of them is in {}", self.root.display()).into());
        }
        if self.names.take(brief) || self.owners.changed {
            self.name();
        }
        if self.is_any_unnamed() && self.names.look_up(self.logs.as_deref(), now) {
            self.name();
        }
        &self.owners
    }

    fn name(&mut self) {
        let occupants = self.entries.iter().map(|(&pid, entry)| (pid, self.names.occupant(entry)));
        self.owners.occupants = occupants.collect();
    }

    fn is_any_unnamed(&self) -> bool {
        let is_unnamed = |occupant: &Occupant| match occupant {
            Occupant::Pod(process) => process.pod.is_none(),
            Occupant::Stranger | Occupant::Unknown(_) | Occupant::Mps => false,
        };
        self.owners.occupants.values().any(is_unnamed)
    }

    /// Reads what is new and forgets what is gone; says whether there was any of it.
    fn read(&mut self, listed: &HashSet<u32>) -> bool {
        let known = self.entries.len();
        self.entries.retain(|pid, _| listed.contains(pid));
        let mut changed = self.entries.len() != known;
        for &pid in listed {
            let folder = self.root.join(pid.to_string());
            let known = self.entries.get(&pid);
            let started = match started(&folder.join("stat")) {
                Ok(started) => started,
                // Its last figures are still its pod's, until the driver lists it no more.
                Err(error) if is_ended(&error) => continue,
                // Once, and not again for as long as it stays like this.
                Err(_) if known.is_some_and(|entry| entry.said.is_err()) => continue,
                Err(error) => {
                    let said = Err(broken(&folder.join("stat"), &error));
                    self.entries.insert(pid, Entry { started: 0, said });
                    changed = true;
                    continue;
                }
            };
            if known.is_some_and(|entry| entry.started == started) {
                continue;
            }
            changed = true;
            match said(&folder) {
                Ok(said) => self.entries.insert(pid, Entry { started, said: Ok(said) }),
                Err(error) if is_ended(&error) => self.entries.remove(&pid),
                Err(error) => {
                    let said = Err(broken(&folder.join("cgroup"), &error));
                    self.entries.insert(pid, Entry { started, said })
                }
            };
        }
        changed
    }
}

fn pids(observation: &Observation) -> HashSet<u32> {
    let lists = observation.devices.iter().filter_map(|device| match &device.processes {
        Processes::Known(processes) => Some(processes),
        Processes::Unasked | Processes::Failed(_) => None,
    });
    lists.flatten().map(|process| process.pid).collect()
}

/// # Errors
/// When the pids of the driver are not the pids of this agent, in one sentence.
fn namespace(root: &Path) -> Result<(), String> {
    let link = root.join("self/ns/pid");
    match std::fs::read_link(&link) {
        Ok(target) if target == Path::new(HOST_NAMESPACE) => Ok(()),
        Ok(_) => Err("the host's processes are not seen from here; set hostPID: true".into()),
        Err(error) => Err(format!(
            "whether the host's processes are seen is not known: {}: {error}",
            link.display()
        )),
    }
}

fn said(folder: &Path) -> io::Result<Said> {
    let cgroup = read(&folder.join("cgroup"))?;
    let is_mps = read(&folder.join("comm")).is_ok_and(|comm| comm.starts_with(MPS));
    Ok(Said { cgroup: cgroup.into(), is_mps })
}

/// When the process of this `stat` started: field 22, counted after the last `)`, because the
/// name before it may hold anything.
fn started(file: &Path) -> io::Result<u64> {
    let stat = read(file)?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let started = fields.split_ascii_whitespace().nth(22 - 3).and_then(|field| field.parse().ok());
    started.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no start time"))
}

fn read(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_ended(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

fn broken(file: &Path, error: &io::Error) -> Arc<str> {
    format!("{}: {error}", file.display()).into()
}

/// What pods are called, by what their cgroups say.
#[derive(Debug, Default)]
struct Names {
    brief: Option<Arc<Brief>>,
    /// Places in the brief, by UID and by what else the cgroups are called after.
    pods: HashMap<PodUid, usize>,
    /// Places in the brief of the pods of containers, by container id.
    containers: HashMap<Arc<str>, usize>,
    logs: HashMap<PodUid, PodKey>,
    logs_read: Option<Timestamp>,
}

impl Names {
    /// Whether this brief is another than before.
    fn take(&mut self, brief: Option<&Arc<Brief>>) -> bool {
        let same = match (&self.brief, brief) {
            (Some(known), Some(brief)) => Arc::ptr_eq(known, brief),
            (known, brief) => known.is_none() && brief.is_none(),
        };
        if same {
            return false;
        }
        (self.pods, self.containers) = (HashMap::new(), HashMap::new());
        for (at, pod) in brief.iter().flat_map(|brief| &brief.pods).enumerate() {
            for uid in pod.cgroup_uid.iter().chain([&pod.uid]) {
                self.pods.insert(uid.clone(), at);
            }
            for container in &pod.containers {
                if let Some(id) = &container.id {
                    self.containers.insert(id.clone(), at);
                }
            }
        }
        self.brief = brief.cloned();
        true
    }

    fn place(&self, said: &Said) -> Place {
        place(&said.cgroup, |uid| self.pods.contains_key(uid) || self.logs.contains_key(uid))
    }

    /// Looks into the folder of logs, but not all the time; says whether anything is new there.
    fn look_up(&mut self, logs: Option<&Path>, now: Timestamp) -> bool {
        let Some(folder) = logs else { return false };
        if self.logs_read.is_some_and(|read| now.since(read) < LOGS_AGAIN) {
            return false;
        }
        self.logs_read = Some(now);
        match podlogs::names(folder) {
            Ok(names) if names == self.logs => false,
            Ok(names) => {
                self.logs = names;
                true
            }
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "no names of pods");
                false
            }
        }
    }

    fn occupant(&self, entry: &Entry) -> Occupant {
        let said = match &entry.said {
            Ok(said) if said.is_mps => return Occupant::Mps,
            Ok(said) => said,
            Err(why) => return Occupant::Unknown(why.clone()),
        };
        match self.place(said) {
            Place::Pod { uid, container } => match self.pods.get(&uid) {
                Some(&at) => self.briefed(at, container.as_ref()),
                None => {
                    let pod = self.logs.get(&uid).cloned();
                    Occupant::Pod(PodProcess { uid, pod, container: None })
                }
            },
            Place::Container(id) => match self.containers.get(&id) {
                Some(&at) => self.briefed(at, Some(&id)),
                None => Occupant::Stranger,
            },
            Place::Host => Occupant::Stranger,
            Place::Unknown => {
                Occupant::Unknown("its cgroup names neither a pod nor the host".into())
            }
        }
    }

    fn briefed(&self, at: usize, id: Option<&Arc<str>>) -> Occupant {
        let brief = self.brief.as_ref().expect("a place is of this brief");
        let BriefedPod { key, uid, finished, containers, .. } = &brief.pods[at];
        if *finished {
            return Occupant::Stranger;
        }
        let named = id.and_then(|id| containers.iter().find(|one| one.id.as_ref() == Some(id)));
        let container = named.map(|one| one.name.clone());
        Occupant::Pod(PodProcess { uid: uid.clone(), pod: Some(key.clone()), container })
    }
}
