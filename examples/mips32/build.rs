//! Tells the linker where the kernel goes.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-arg-bins=-T{here}/../malta/malta.ld");
    println!("cargo::rerun-if-changed=../malta/malta.ld");
}
