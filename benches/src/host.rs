//! Where a run was made: without that its numbers mean nothing.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

/// The machine, the compiler and the commit of a run.
#[derive(Clone, Debug)]
pub struct Host {
    /// Operating system, architecture, and how many CPUs.
    pub machine: String,
    /// The processor's name.
    pub cpu: String,
    /// The compiler and the profile.
    pub compiler: String,
    /// The commit of the tree in which the bench was started, and whether it has changes that are not committed.
    pub commit: String,
}

impl Host {
    /// Asks the system.
    pub fn this() -> Self {
        let cpus = available_parallelism().map_or(1, usize::from);
        let profile = if cfg!(debug_assertions) { "not optimized" } else { env!("TLBKIT_PROFILE") };
        Self {
            machine: format!("{} {}, {cpus} CPUs", std::env::consts::OS, std::env::consts::ARCH),
            cpu: cpu(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            compiler: format!("{}, {profile}", env!("TLBKIT_RUSTC")),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
        }
    }

    /// Returns the names and the values.
    pub fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("machine", &self.machine),
            ("cpu", &self.cpu),
            ("compiler", &self.compiler),
            ("commit", &self.commit),
        ]
    }
}

/// Returns the processor's name, as Linux says it: x86 has a name, Arm and RISC-V have numbers and extensions.
fn cpu(cpuinfo: &str) -> String {
    let said = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let names = ["model name", "Model", "uarch", "CPU part"];
    names.into_iter().find_map(said).unwrap_or_else(|| "unknown".to_owned())
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { hash } else { format!("{hash} with changes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_called_what_linux_calls_it() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t: fpu\n"), "A CPU @ 2 GHz");
        assert_eq!(cpu("processor\t: 0\nuarch\t: sifive,u74-mc\n"), "sifive,u74-mc");
        assert_eq!(cpu(""), "unknown");
    }

    #[test]
    fn every_field_says_something() {
        for (name, value) in Host::this().fields() {
            assert!(!value.is_empty(), "{name}");
        }
    }
}
