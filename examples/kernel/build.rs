//! Tells the linker where the kernel's memory is, and where the programs'.

use std::env;
use std::path::Path;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    match arch.as_str() {
        // The code stands where it is linked: no loader relocates it.
        "x86_64" => println!("cargo::rustc-link-arg-bins=--no-pie"),
        // Boot loaders take a flat image, whose header says what it is.
        "aarch64" => {
            for kernel in ["tlbkit-kernel", "tlbkit-embedding"] {
                println!("cargo::rustc-link-arg-bin={kernel}=--oformat=binary");
            }
        }
        _ => {}
    }
    let kernel = match arch.as_str() {
        "mips" => "../malta/malta.ld".into(),
        arch => format!("src/arch/{arch}/kernel.ld"),
    };
    // The guide's kernel is where boot loaders of x86-64 expect one.
    let guide = if arch == "x86_64" { "embedding/board/x86_64.ld" } else { kernel.as_str() };
    for (program, script) in [
        ("tlbkit-kernel", kernel.as_str()),
        ("tlbkit-embedding", guide),
        ("tlbkit-programs", "user/programs.ld"),
    ] {
        println!("cargo::rustc-link-arg-bin={program}=-T{}", Path::new(&folder).join(script).display());
        println!("cargo::rerun-if-changed={script}");
    }
}
