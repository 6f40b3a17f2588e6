//! Benchmarks live in `benches/`; there is nothing here.
