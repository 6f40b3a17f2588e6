//! A QEMU plugin that counts what the MIPS32 kernel's exception vectors do: refills, instructions, memory references.
//!
//! The kernel counts instructions itself, by time; this counts them as QEMU executes them, so that one can be held
//! against the other, and sees the references that no program can see. The kernel says when to count by
//! an instruction that does nothing, `ori $0, $0, n`: 1 begins, 2 ends and appends a line to the file that the plugin's
//! argument `out=` names:
//!
//! ```text
//! plugin refills=5120 plugin_insns=76800 refs=15360
//! ```
//!
//! The functions of QEMU's that it needs are few, so it declares them rather than taking its header.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::Write;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the vectors are, up to the end of their page: the refill vector comes first.
const VECTORS: std::ops::Range<u32> = 0x8000_0000..0x8000_1000;
/// Where misses within misses go.
const GENERAL: u32 = 0x8000_0180;

/// The instructions that say when to count.
const BEGIN: u32 = 0x3400_0001;
const END: u32 = 0x3400_0002;

/// The instruction that leaves a handler.
const ERET: u32 = 0x4200_0018;

/// Whether the last instruction was a handler's. QEMU calls back before an instruction, and one that misses has not been
/// executed: it comes again.
static INSIDE: AtomicBool = AtomicBool::new(false);
static COUNTING: AtomicBool = AtomicBool::new(false);
static REFILLS: AtomicU64 = AtomicU64::new(0);
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
static REFERENCES: AtomicU64 = AtomicU64::new(0);
static OUT: OnceLock<String> = OnceLock::new();

/// The version of the interface that this is written for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "QEMU looks for this name")]
pub static qemu_plugin_version: c_int = 1;

/// A piece of code, and one of its instructions, as QEMU has them.
type Block = *mut c_void;
type Instruction = *mut c_void;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, Block));
    fn qemu_plugin_tb_n_insns(block: Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: Block, index: usize) -> Instruction;
    fn qemu_plugin_insn_data(instruction: Instruction) -> *const [u8; 4];
    fn qemu_plugin_insn_vaddr(instruction: Instruction) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: Instruction,
        callback: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: Instruction,
        callback: extern "C" fn(c_uint, u32, u64, *mut c_void),
        flags: c_int,
        access: c_int,
        data: *mut c_void,
    );
}

/// The callbacks read no registers; and they want loads and stores.
const NO_REGISTERS: c_int = 0;
const LOADS_AND_STORES: c_int = 3;

/// What QEMU calls first.
///
/// # Safety
///
/// QEMU calls it, with `count` arguments that are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        let argument = unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy();
        if let Some(path) = argument.strip_prefix("out=") {
            OUT.get_or_init(|| path.to_owned());
        }
    }
    if OUT.get().is_none() {
        eprintln!("the plugin wants `out=FILE`");
        return 1;
    }
    // SAFETY: the callback is of the type that QEMU expects; so for all that follow.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
    0
}

/// QEMU has translated a piece of code, and asks what is of interest in it.
extern "C" fn translated(_id: u64, block: Block) {
    // SAFETY: the block is QEMU's, for the duration of the call, and so are its instructions, each of four bytes.
    unsafe {
        for index in 0..qemu_plugin_tb_n_insns(block) {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            let at = qemu_plugin_insn_vaddr(instruction) as u32;
            let bytes = *qemu_plugin_insn_data(instruction);
            let on_execution = |callback| {
                qemu_plugin_register_vcpu_insn_exec_cb(instruction, callback, NO_REGISTERS, ptr::null_mut());
            };
            if at == VECTORS.start {
                on_execution(refill);
            }
            if at == GENERAL {
                on_execution(missed);
            }
            if VECTORS.contains(&at) {
                on_execution(executed);
                qemu_plugin_register_vcpu_mem_cb(
                    instruction,
                    referred,
                    NO_REGISTERS,
                    LOADS_AND_STORES,
                    ptr::null_mut(),
                );
            }
            // The guest's byte order is not ours to know.
            match [u32::from_le_bytes(bytes), u32::from_be_bytes(bytes)] {
                [BEGIN, _] | [_, BEGIN] => on_execution(begin),
                [END, _] | [_, END] => on_execution(end),
                [ERET, _] | [_, ERET] => on_execution(left),
                _ => {}
            }
        }
    }
}

fn count(counter: &AtomicU64) {
    if COUNTING.load(Ordering::Relaxed) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn refill(_cpu: c_uint, _data: *mut c_void) {
    count(&REFILLS);
}

extern "C" fn missed(_cpu: c_uint, _data: *mut c_void) {
    if INSIDE.load(Ordering::Relaxed) && COUNTING.load(Ordering::Relaxed) {
        INSTRUCTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

extern "C" fn executed(_cpu: c_uint, _data: *mut c_void) {
    INSIDE.store(true, Ordering::Relaxed);
    count(&INSTRUCTIONS);
}

extern "C" fn left(_cpu: c_uint, _data: *mut c_void) {
    INSIDE.store(false, Ordering::Relaxed);
}

extern "C" fn referred(_cpu: c_uint, _info: u32, _at: u64, _data: *mut c_void) {
    count(&REFERENCES);
}

extern "C" fn begin(_cpu: c_uint, _data: *mut c_void) {
    for counter in [&REFILLS, &INSTRUCTIONS, &REFERENCES] {
        counter.store(0, Ordering::Relaxed);
    }
    COUNTING.store(true, Ordering::Relaxed);
}

extern "C" fn end(_cpu: c_uint, _data: *mut c_void) {
    COUNTING.store(false, Ordering::Relaxed);
    let [refills, instructions, references] =
        [&REFILLS, &INSTRUCTIONS, &REFERENCES].map(|counter| counter.load(Ordering::Relaxed));
    let line = format!("plugin refills={refills} plugin_insns={instructions} refs={references}\n");
    let file = OUT.get().map(|path| OpenOptions::new().create(true).append(true).open(path));
    let written = file.transpose().map(|file| file.map(|mut file| file.write_all(line.as_bytes())));
    if !matches!(written, Ok(Some(Ok(())))) {
        eprintln!("the plugin cannot write what it has counted");
    }
}
