//! Tells the linker where the kernel's memory is, and where the programs'.

use std::env;
use std::path::Path;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    for (program, script) in [
        ("tlbkit-kernel", "src/arch/riscv64/kernel.ld"),
        ("tlbkit-embedding", "src/arch/riscv64/kernel.ld"),
        ("tlbkit-programs", "user/programs.ld"),
    ] {
        println!("cargo::rustc-link-arg-bin={program}=-T{}", Path::new(&folder).join(script).display());
        println!("cargo::rerun-if-changed={script}");
    }
}
