//! The documentation: its pages, read as Markdown, and that every link leads somewhere.

/// What the pages say of commands, flags and arguments.
mod commands;

/// What the pages quote of the binaries.
mod quotes;

/// What the pages say of triggers, metrics, series and alerts.
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A page, taken apart.
#[derive(Default)]
struct Page {
    /// Lines of text, without code between back-ticks.
    prose: Vec<String>,
    /// What is between back-ticks.
    spans: Vec<String>,
    /// Code blocks: the word after the fence, and the lines.
    blocks: Vec<(String, String)>,
    /// Anchors of its headings.
    anchors: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every Markdown file of the repository, by its path from the root.
fn pages() -> BTreeMap<PathBuf, Page> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir()
                && !name.starts_with('.')
                && !matches!(&*name, "target" | "node_modules")
                && !path.is_symlink()
            {
                walk(&path, found);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(root()).unwrap().to_owned(), page(&text))
    };
    found.into_iter().map(read).collect()
}

fn page(text: &str) -> Page {
    let mut page = Page::default();
    let mut fence: Option<(String, String)> = None;
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for line in text.lines() {
        if let Some(word) = line.trim_start().strip_prefix("```") {
            match fence.take() {
                Some(block) => page.blocks.push(block),
                None => fence = Some((word.trim().to_owned(), String::new())),
            }
            continue;
        }
        if let Some((_, block)) = &mut fence {
            block.push_str(line);
            block.push('\n');
            continue;
        }
        let is_heading = line.starts_with('#');
        if is_heading {
            let slug = slug(line.trim_start_matches('#'));
            let count = seen.entry(slug.clone()).or_default();
            page.anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
        let parts: Vec<&str> = line.split('`').collect();
        page.spans.extend(parts.iter().skip(1).step_by(2).map(|part| (*part).to_owned()));
        page.prose.push(parts.into_iter().step_by(2).collect::<Vec<_>>().join("`"));
    }
    page
}

/// The anchor that GitHub gives a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Takes `.` and `..` out of a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for link in page.prose.iter().flat_map(|line| links(line)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
            let file = match file {
                "" => path.clone(),
                file => plain(&path.parent().unwrap().join(file)),
            };
            let is_there = root().join(&file).exists();
            let has_anchor = anchor.is_none_or(|anchor| {
                pages.get(&file).is_some_and(|page| page.anchors.contains(anchor))
            });
            if !(is_there && has_anchor) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
