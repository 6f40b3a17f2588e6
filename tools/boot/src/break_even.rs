//! The hit rate above which a software TLB cache pays.
//!
//! Arithmetic: with a hit of `h` instructions, a miss (probe, walk and fill) of `m` and a table that takes `t` alone, a
//! hit rate of `r` costs `r h + (1 - r) m`, which is less than `t` above `(m - t) / (m - h)`. Measured: the same refills
//! with the cache and without it, at hit rates from high to low; the line between the two that lie on either side.

use std::collections::BTreeMap;

/// The refills of one set of pages.
#[derive(Clone, Copy, Debug)]
struct Point {
    hits: f64,
    hit_instructions: f64,
    misses: f64,
    miss_instructions: f64,
}

impl Point {
    fn refills(self) -> f64 {
        self.hits + self.misses
    }

    fn mean(self) -> f64 {
        (self.hit_instructions + self.miss_instructions) / self.refills()
    }
}

/// What the kernel said of every table: its points by pages.
#[derive(Debug, Default)]
pub(crate) struct Curves(BTreeMap<String, BTreeMap<u64, Point>>);

impl Curves {
    /// Adds the lines `curve` of a boot.
    pub(crate) fn add(&mut self, lines: &[String]) {
        for line in lines.iter().filter_map(|line| line.strip_prefix("curve ")) {
            let words: BTreeMap<_, _> = line.split(' ').filter_map(|word| word.split_once('=')).collect();
            let number = |name| words.get(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
            let point = Point {
                hits: number("hits"),
                hit_instructions: number("hit_insns"),
                misses: number("misses"),
                miss_instructions: number("miss_insns"),
            };
            let table = words.get("table").copied().unwrap_or_default();
            self.0.entry(table.to_owned()).or_default().insert(number("pages") as u64, point);
        }
    }

    /// Returns a line for each table that was booted with and without a cache.
    pub(crate) fn table(&self) -> String {
        let lines: String = self.0.keys().filter_map(|table| self.line(table)).collect();
        if lines.is_empty() {
            lines
        } else {
            format!("\nA software TLB cache pays above a hit rate of\n{lines}")
        }
    }

    fn line(&self, table: &str) -> Option<String> {
        let (_, alone) = table.split_once('/')?;
        let (cached, alone) = (self.0.get(table)?, self.0.get(alone)?);
        // Hit rate, and how much dearer the cache is than the table alone.
        let mut points: Vec<(f64, f64)> = cached
            .iter()
            .filter_map(|(pages, point)| {
                let rate = point.hits / point.refills();
                Some((rate, point.mean() - alone.get(pages)?.mean()))
            })
            .filter(|(rate, _)| rate.is_finite())
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let measured = points.windows(2).find_map(|pair| {
            let [(low, dearer), (high, cheaper)] = *pair else { return None };
            (dearer > 0.0 && cheaper <= 0.0).then(|| low + (high - low) * dearer / (dearer - cheaper))
        });
        let sum = |of: fn(&Point) -> f64| cached.values().map(of).sum::<f64>();
        let hit = sum(|point| point.hit_instructions) / sum(|point| point.hits);
        let miss = sum(|point| point.miss_instructions) / sum(|point| point.misses);
        let refills = alone.values().map(|point| point.refills()).sum::<f64>();
        let walk = alone.values().map(|point| point.mean() * point.refills()).sum::<f64>() / refills;
        let arithmetic = (miss - walk) / (miss - hit);
        let measured = match (measured, points.first()) {
            (Some(rate), _) => format!("{:5.1} %", rate * 100.0),
            (None, Some((lowest, dearer))) if *dearer <= 0.0 => {
                format!("any down to {:.1} %", lowest * 100.0)
            }
            _ => "none".into(),
        };
        Some(format!(
            "  {table:<10} {measured} measured, {:5.1} % by arithmetic: hit {hit:.1}, miss {miss:.1}, alone {walk:.1} instructions\n",
            arithmetic * 100.0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_pays_where_the_two_lines_cross() {
        let mut curves = Curves::default();
        // Hits of 10 and misses of 40, a table of 20: two thirds.
        let line = |table: &str, pages: u32, hits: u32| {
            let misses = 100 - hits;
            format!(
                "curve table={table} pages={pages} hits={hits} hit_insns={} misses={misses} miss_insns={}",
                hits * 10,
                misses * 40
            )
        };
        let alone =
            |pages: u32| format!("curve table=T pages={pages} hits=0 hit_insns=0 misses=100 miss_insns=2000");
        curves.add(&[line("S/T", 1, 90), line("S/T", 2, 50), alone(1), alone(2), "row table=T".into()]);
        assert!(curves.table().contains("66.7 % measured,  66.7 % by arithmetic"), "{}", curves.table());
    }
}
