//! The words after `-append`.

use core::ffi::CStr;

/// Returns the kernel's command line: the second string of the array that the firmware passes.
///
/// # Safety
///
/// `arguments` is what the firmware passed: addresses of C strings in memory that no CPU writes.
pub unsafe fn command_line(count: usize, arguments: *const u32) -> &'static str {
    if count < 2 {
        return "";
    }
    // SAFETY: the caller's promise.
    let text = unsafe {
        // Addresses have 32 bits, and their sign in the rest.
        let text = arguments.add(1).read() as i32 as usize;
        CStr::from_ptr(core::ptr::with_exposed_provenance(text))
    };
    text.to_str().unwrap_or("")
}
