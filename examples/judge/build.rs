//! Tells the linker where the machine's memory is.

use std::env;
use std::path::Path;

fn main() {
    let script = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("riscv64") => "riscv64.ld",
        Ok("aarch64") => "aarch64.ld",
        _ => return,
    };
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-link-arg-bins=-T{}", Path::new(&folder).join(script).display());
    println!("cargo::rerun-if-changed={script}");
}
