//! Tells the linker where the kernel that boots has its memory: where the kernel of `docs/embedding.md` has it.

use std::env;
use std::path::Path;

fn main() {
    let script = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => {
            // Boot loaders take a flat image, whose header says what it is.
            println!("cargo::rustc-link-arg-bin=measured=--oformat=binary");
            "../kernel/src/arch/aarch64/kernel.ld"
        }
        Ok("riscv64") => "../kernel/src/arch/riscv64/kernel.ld",
        Ok("x86_64") => {
            // The code stands where it is linked: no loader relocates it.
            println!("cargo::rustc-link-arg-bins=--no-pie");
            "../kernel/embedding/board/x86_64.ld"
        }
        _ => return,
    };
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rustc-link-arg-bin=measured=-T{}", Path::new(&folder).join(script).display());
    println!("cargo::rerun-if-changed={script}");
}
