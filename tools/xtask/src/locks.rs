//! `cargo xtask locks`: what the lock file of a user holds because of one of the crates.
//!
//! A lock file holds every package that any platform, feature or `cfg` might need, built or not. So a dependency that is
//! only there for a test can put dozens of packages into the lock file of a kernel, where each has to be audited.

use std::collections::BTreeSet;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail, ensure};

use crate::places;
use crate::shell::Shell;

/// The most packages that a kernel locks because of `tlbkit`, itself among them.
const MOST: usize = 8;

/// Returns the packages that an empty crate locks which depends on the crate in a folder of `crates`.
pub(crate) fn of_a_user(folder: &str) -> anyhow::Result<BTreeSet<String>> {
    Ok(packages_of_a_user(folder)?.0)
}

/// Lets an empty crate depend on each of the kernel's crates, and checks that it locks no package that it does not build.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    for folder in places::kernel_folders()? {
        let (locked, built) = packages_of_a_user(&folder)?;
        let package = places::package(&folder);
        let idle: Vec<_> = locked.difference(&built).collect();
        ensure!(idle.is_empty(), "a crate that depends on {package} locks {idle:?} and builds none of them");
        let count = locked.len();
        ensure!(
            count <= MOST,
            "a crate that depends on {package} locks {count} packages, and {MOST} are allowed: {locked:?}"
        );
        if matches!(shell, Shell::Plain) {
            println!("{package}: {} packages: {}", locked.len(), Vec::from_iter(locked).join(", "));
        }
    }
    Ok(())
}

/// Returns the packages that a crate locks whose one dependency is in a folder of `crates`, and those that it builds here.
fn packages_of_a_user(folder: &str) -> anyhow::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let root = env::current_dir()?;
    let user = root.join(places::target()).join("locks").join(folder);
    fs::create_dir_all(user.join("src"))?;
    fs::write(user.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[workspace]\n[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [dependencies]\n{} = {{ path = {:?} }}\n",
        places::package(folder),
        root.join("crates").join(folder),
    );
    fs::write(user.join("Cargo.toml"), manifest)?;
    // The versions that are here already; cargo takes out what this crate has no use for.
    fs::copy("Cargo.lock", user.join("Cargo.lock"))?;
    let tree = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let output = Command::new("cargo").args(tree).current_dir(&user).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo tree in {}: {}", user.display(), String::from_utf8_lossy(&output.stderr));
    }
    // `name v1.2.3 (path)`, and in the lock file `name = "name"`.
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let built = String::from_utf8_lossy(&output.stdout).lines().map(name).collect::<BTreeSet<_>>();
    let lock = fs::read_to_string(user.join("Cargo.lock"))?;
    let locked =
        lock.lines().filter_map(|line| line.strip_prefix("name = ")).map(|name| name.trim_matches('"'));
    let own = |name: &String| name != "user" && !name.is_empty();
    Ok((locked.map(String::from).filter(own).collect(), built.into_iter().filter(own).collect()))
}
