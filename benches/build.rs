//! Notes the compiler and the profile that the benches are built by: each report names them.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=TLBKIT_RUSTC={}", version.unwrap_or_default());
    // The profile's own values are in the workspace's Cargo.toml, and a run may override them.
    let set = |variable: &str, own: &str| {
        println!("cargo::rerun-if-env-changed={variable}");
        std::env::var(variable).unwrap_or_else(|_| own.to_owned())
    };
    let (lto, units) = (set("CARGO_PROFILE_BENCH_LTO", "fat"), set("CARGO_PROFILE_BENCH_CODEGEN_UNITS", "1"));
    println!("cargo::rustc-env=TLBKIT_PROFILE=lto = {lto}, codegen-units = {units}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
}
