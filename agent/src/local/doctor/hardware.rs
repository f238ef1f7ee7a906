//! Pure: what the kernel and NVIDIA's library said → whether they are there and fit each other.
//!
//! Guarantees: the driver is named before the library, and neither is blamed for the other.

use super::{Broken, Report};
use crate::device::nvml::probe::{Answer, Trouble};

/// What the kernel says about the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// Where it was asked.
    pub file: String,
    /// What it said, where it said anything.
    pub said: Option<String>,
}

impl Driver {
    /// The version in what the kernel said, as in `… Kernel Module  550.54.15  Tue …`.
    fn version(&self) -> Option<&str> {
        let is_version = |word: &&str| {
            let part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
            word.contains('.') && word.split('.').all(part)
        };
        self.said.as_deref()?.split_whitespace().find(is_version)
    }

    /// The driver as far as the kernel tells.
    fn words(&self) -> Option<String> {
        self.said.as_ref()?;
        Some(match self.version() {
            Some(version) => format!("the NVIDIA driver {version} is loaded"),
            None => "an NVIDIA driver is loaded".into(),
        })
    }
}

/// Takes note of driver and library; false if one of them is broken.
pub fn hardware(report: &mut Report, driver: &Driver, answer: Result<Answer, Trouble>) -> bool {
    let loaded = driver.words();
    let trouble = match answer {
        Ok(Answer { driver, library, devices: _ }) => {
            let loaded = loaded.unwrap_or_else(|| {
                driver.map_or_else(
                    || "the NVIDIA driver answers".into(),
                    |version| format!("the NVIDIA driver {version} answers"),
                )
            });
            report.note("driver", Ok(loaded));
            return report.note("library", Ok(library));
        }
        Err(trouble) => trouble,
    };
    let broken = Broken::new(trouble.said(), next(&trouble, driver));
    match (loaded, trouble.is_of_the_driver()) {
        (Some(loaded), false) => {
            report.note("driver", Ok(loaded));
            report.note("library", Err(broken))
        }
        // The library's words are more than the kernel's silence.
        (None, false) if !matches!(trouble, Trouble::NoLibrary(_)) => {
            report.note("driver", Ok("the kernel does not say; its library is asked".into()));
            report.note("library", Err(broken))
        }
        (None, false) => {
            let Broken { said, .. } = broken;
            let file = &driver.file;
            let said = format!("no NVIDIA driver is loaded ({file} is not there), and {said}");
            report.note("driver", Err(Broken::new(said, "lspci -d 10de:")))
        }
        (_, true) => report.note("driver", Err(broken)),
    }
}

fn next(trouble: &Trouble, driver: &Driver) -> String {
    match trouble {
        Trouble::NoLibrary(_) | Trouble::NotTheLibrary(_) => "ldconfig -p | grep nvidia-ml".into(),
        Trouble::Mismatch(_) => format!("cat {}", driver.file),
        Trouble::NoPermission(_) => "ls -l /dev/nvidiactl /dev/nvidia0".into(),
        Trouble::NoDriver(_) | Trouble::Hangs(_) | Trouble::Other(_) => {
            "dmesg | grep -i nvrm".into()
        }
    }
}
