//! A stand-in for NVIDIA's `libnvidia-ml.so.1`: the same C functions, scripted by a file.
//!
//! The script is the file named by `FAKE_NVML_SCRIPT`, else the library's own path with `.json`
//! behind it, so that copies of the library in one process follow scripts of their own. It is read
//! again whenever it changes: a GPU can be lost, hang or come back while a program runs. A symbol
//! is taken away by renaming it in a copy of the library (`nvml…` → `xvml…` in its string table),
//! which is what an old driver looks like to `dlsym`.
//!
//! Strict where the real library is: nothing works before `nvmlInit`, version words and buffer
//! sizes are checked, unknown handles are refused, samples are those after the given time stamp,
//! PCIe counters take their 20 ms, the energy counter steps ten times a second, the handle of a MIG
//! instance is that of whatever is in its slot now, GPM samples have to be 100 ms apart.

/// Functions on one GPU.
mod device;
/// Event sets.
mod events;
/// What a function finds before it does its own work.
mod gate;
/// GPM: the counters of Hopper and newer, also of MIG instances.
mod gpm;
/// What is the matter with a GPU.
mod health;
/// Functions on the library as a whole.
mod library;
/// MIG instances.
mod mig;
/// Processes, and how much of a GPU's time each has.
mod processes;
/// What is written in the script.
mod script;
