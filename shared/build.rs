//! Which commit this build is of, for `--version`: what `KEDA_GPU_GATEWAY_COMMIT` and
//! `KEDA_GPU_GATEWAY_COMMIT_DATE` say (image builds have no checkout), or else what git says of
//! this checkout, or else `unknown`.
//!
//! Git is not asked for a debug build: every commit would compile the whole workspace again.

use std::path::Path;
use std::process::Command;

const COMMIT: &str = "KEDA_GPU_GATEWAY_COMMIT";
const DATE: &str = "KEDA_GPU_GATEWAY_COMMIT_DATE";
const BUILD: &str = "KEDA_GPU_GATEWAY_BUILD";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={COMMIT}");
    println!("cargo:rerun-if-env-changed={DATE}");
    let stamp = match given(COMMIT) {
        Some(commit) => Some((commit, given(DATE))),
        None if given("PROFILE").as_deref() == Some("debug") => None,
        None => head(),
    };
    let (commit, date) = stamp.unwrap_or_else(|| ("unknown".to_owned(), None));
    // As many digits as GitHub shows; image builds are given all of them.
    let commit: String = commit.chars().take(7).collect();
    let of = [Some(commit.clone()), date].into_iter().flatten().collect::<Vec<_>>().join(", ");
    println!("cargo:rustc-env={COMMIT}={commit}");
    println!("cargo:rustc-env={BUILD}={} ({of})", env!("CARGO_PKG_VERSION"));
}

/// A variable that is set, and to something.
#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by variables")]
fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The commit of this checkout, and its day; none if the tree is inside somebody else's repository.
fn head() -> Option<(String, Option<String>)> {
    if !git(&["rev-parse", "--show-prefix"])?.is_empty() {
        return None;
    }
    // The log of HEAD grows with every commit and switch; the others are for checkouts that keep
    // none. Git names the paths, since in a worktree `.git` is a file. Cargo takes a path that is
    // not there for one that has changed.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Some((git(&["rev-parse", "HEAD"])?, git(&["show", "--no-patch", "--format=%cs", "HEAD"])))
}

/// What git answers about the workspace's folder.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(["-C", ".."]).args(arguments).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| answer.trim_end().to_owned())
}
