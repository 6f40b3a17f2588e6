//! Tells the linker where the kernel's memory is, and where the programs'.

use std::env;
use std::path::Path;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let machine = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "aarch64",
        Ok("mips") => "mips32",
        Ok("x86_64") => {
            // The code stands where it is linked: no loader relocates it.
            println!("cargo::rustc-link-arg-bins=--no-pie");
            "x86_64"
        }
        _ => "riscv64",
    };
    let kernel = match machine {
        "mips32" => "../malta/malta.ld".into(),
        machine => format!("src/arch/{machine}/kernel.ld"),
    };
    for (program, script) in [
        ("tlbkit-kernel", kernel.as_str()),
        ("tlbkit-embedding", &kernel),
        ("tlbkit-programs", "user/programs.ld"),
    ] {
        println!("cargo::rustc-link-arg-bin={program}=-T{}", Path::new(&folder).join(script).display());
        println!("cargo::rerun-if-changed={script}");
    }
    if machine == "aarch64" {
        // Boot loaders take a flat image, whose header says what it is.
        println!("cargo::rustc-link-arg-bin=tlbkit-kernel=--oformat=binary");
    }
}
