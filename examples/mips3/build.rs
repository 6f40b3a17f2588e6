//! Tells the linker where the kernel goes.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-arg-bins=-T{here}/kernel.ld");
    println!("cargo::rerun-if-changed=kernel.ld");
}
