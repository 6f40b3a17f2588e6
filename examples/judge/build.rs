//! Tells the linker where the machine's memory is.

use std::env;
use std::path::Path;

fn main() {
    let script = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("riscv64" | "riscv32") => "riscv.ld",
        Ok("aarch64") => "aarch64.ld",
        Ok("x86_64") if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") => {
            // The code stands where it is linked: no loader relocates it.
            println!("cargo::rustc-link-arg-bins=--no-pie");
            "x86_64.ld"
        }
        _ => return,
    };
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-link-arg-bins=-T{}", Path::new(&folder).join(script).display());
    println!("cargo::rerun-if-changed={script}");
}
