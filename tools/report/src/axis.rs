//! An axis: linear, logarithmic, or a row for each name. One type for all, so that one plot is one type.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// How values become places.
#[derive(Clone, Debug)]
pub(crate) enum Scale {
    /// From zero on.
    Linear,
    /// By the logarithm. Values are above zero.
    Log,
    /// Value `n` is the row of the name with the number `n`, from the top down.
    Names(Vec<String>),
}

/// An axis over the values that it shows.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// Returns an axis on which all of `values` have a place; `at` are its ticks, or none: then round numbers are.
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>, at: &[f64]) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        let ticks = match &scale {
            Scale::Names(names) => {
                (low, high) = (-0.5, names.len() as f64 - 0.5);
                (0..names.len()).map(|row| row as f64).collect()
            }
            Scale::Linear => {
                (low, high) = (low.min(0.0), high.max(0.0));
                if low == high {
                    high = 1.0;
                }
                let step = round_step((high - low) / 5.0);
                (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
                let steps = ((high - low) / step).round() as usize;
                (0..=steps).map(|at| low + at as f64 * step).collect()
            }
            Scale::Log => {
                low = low.max(f64::MIN_POSITIVE);
                let decades = (high / low).log10();
                (low, high) = (low / 1.15, high * 1.15);
                let parts: &[f64] = if decades < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let from = low.log10().floor() as i32;
                let every = ((decades / 6.0).ceil() as usize).max(1);
                (from..=high.log10().ceil() as i32)
                    .step_by(every)
                    .flat_map(|exponent| parts.iter().map(move |part| part * 10f64.powi(exponent)))
                    .filter(|tick| (low..=high).contains(tick))
                    .collect()
            }
        };
        Self { scale, low, high, ticks: if at.is_empty() { ticks } else { at.to_vec() } }
    }

    /// Returns the least value that has a place.
    pub(crate) fn low(&self) -> f64 {
        self.low
    }

    /// Returns how wide its longest label is, in characters.
    pub(crate) fn label_width(&self) -> usize {
        self.ticks.iter().map(|tick| self.format(tick).chars().count()).max().unwrap_or(0)
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|part| part * power)
        .into_iter()
        .find(|&round| round >= step * 0.999)
        .unwrap_or(10.0 * power)
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = match self.scale {
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Names(_) => 1.0 - (value - self.low) / (self.high - self.low),
        };
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _hint: H) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        number(*value)
    }
}

impl Axis {
    /// Returns the label of a tick.
    pub(crate) fn format(&self, value: &f64) -> String {
        match &self.scale {
            Scale::Names(names) => names.get(value.round() as usize).cloned().unwrap_or_default(),
            _ => number(*value),
        }
    }
}

/// Returns a number as a person would write it: three digits that mean something, thousands by k and M.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let short = |value: f64, digits: usize| {
        let text = format!("{value:.digits$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match size {
        _ if !value.is_finite() => "-".into(),
        _ if size >= 1e7 => format!("{}M", short(value / 1e6, 0)),
        _ if size >= 1e6 => format!("{}M", short(value / 1e6, 1)),
        _ if size >= 1e5 => format!("{}k", short(value / 1e3, 0)),
        _ if size >= 1e4 => format!("{}k", short(value / 1e3, 1)),
        _ if size >= 100.0 => short(value, 0),
        _ if size >= 10.0 => short(value, 1),
        _ if size >= 0.1 || size == 0.0 => short(value, 2),
        _ if size >= 0.001 => short(value, 4),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let said = [0.0, 0.05, 0.25, 1.0, 12.34, 150.2, 9999.0, 12_345.0, 234_567.0, 2.5e6, 4e7].map(number);
        assert_eq!(said, ["0", "0.05", "0.25", "1", "12.3", "150", "9999", "12.3k", "235k", "2.5M", "40M"]);
        assert_eq!((number(f64::NAN), number(0.00004)), ("-".into(), "4e-5".into()));
    }

    #[test]
    fn an_axis_holds_its_values() {
        for scale in [Scale::Linear, Scale::Log] {
            for values in [&[3.0][..], &[0.7, 930.0], &[1e-3, 5e6], &[]] {
                let axis = Axis::new(scale.clone(), values.iter().copied(), &[]);
                for value in values {
                    assert!((0..=1000).contains(&axis.map(value, (0, 1000))), "{axis:?}");
                }
                assert!(
                    axis.ticks.iter().all(|tick| (0..=1000).contains(&axis.map(tick, (0, 1000)))),
                    "{axis:?}"
                );
            }
        }
    }

    #[test]
    fn names_go_down() {
        let axis = Axis::new(Scale::Names(vec!["a".into(), "b".into()]), std::iter::empty(), &[]);
        assert!(axis.map(&0.0, (100, 0)) < axis.map(&1.0, (100, 0)));
        assert_eq!((axis.format(&1.0), axis.label_width()), ("b".into(), 1));
    }
}
