//! OSDI paper, section 6.2: the time of a trap by its instructions and cache misses.

/// A path through the trap handlers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrapPath {
    pub(crate) name: &'static str,
    /// Instructions executed, `i`.
    pub(crate) instructions: u32,
    /// Cache misses, `m`.
    pub(crate) misses: u32,
    /// Cycles printed for 200 MHz.
    pub(crate) printed: f64,
    /// Cycles measured at 40 MHz (Tables 1 and 5).
    pub(crate) measured: f64,
}

impl TrapPath {
    /// Trap time = i + m t.
    pub(crate) fn time(&self, t: f64) -> f64 {
        f64::from(self.instructions) + f64::from(self.misses) * t
    }
}

/// Cycles to service a cache miss at 40 MHz.
const T: f64 = 24.0;

/// Returns `t` at another clock rate with the same memory.
pub(crate) fn miss_time(mhz: f64) -> f64 {
    mhz / 40.0 * T
}

const fn path(name: &'static str, instructions: u32, misses: u32, printed: f64, measured: f64) -> TrapPath {
    TrapPath { name, instructions, misses, printed, measured }
}

/// The paths of section 6.2. "KPT" is an L3 miss.
pub(crate) const PATHS: [TrapPath; 7] = [
    path("STLB fail", 29, 2, 269.0, 70.0),
    path("STLB L2, path 1", 61, 2, 301.0, 114.0),
    path("STLB L2, path 2", 76, 3, 436.0, 160.0),
    path("STLB L1K, L3", 52, 2, 292.0, 105.0),
    path("Mach L1K", 167, 14, 1847.0, 512.0),
    path("Mach L2", 207, 14, 1887.0, 555.0),
    path("Mach KPT", 161, 10, 1361.0, 407.0),
];
