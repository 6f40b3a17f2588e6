//! A chart: what it shows as data, and as an SVG whose colours are the page's.
//!
//! The plotting crate writes colours as numbers. Each that is used here is a stand-in, and becomes a variable of the
//! page's style sheet once the drawing is done: the page decides what is light and what is dark, the printer too.

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Serialize;

use crate::axis::{Axis, Scale};

/// A curve, or the bars of one colour.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Whether the paper printed the numbers: they are the only ones that were typed in.
    pub(crate) printed: bool,
    /// Which of the page's colours.
    #[serde(skip)]
    pub(crate) colour: usize,
    /// Whether the points stand alone.
    #[serde(skip)]
    pub(crate) scattered: bool,
    pub(crate) points: Vec<(f64, f64)>,
    /// How far each point's bar of errors reaches to either side; none if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) spread: Vec<f64>,
}

impl Series {
    /// Returns a curve of ours.
    pub(crate) fn ours(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), printed: false, colour, scattered: false, points, spread: Vec::new() }
    }

    /// Returns what a paper printed.
    pub(crate) fn printed(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { printed: true, scattered: true, ..Self::ours(name, colour, points) }
    }

    /// Adds error bars.
    pub(crate) fn with_spread(self, spread: Vec<f64>) -> Self {
        Self { spread, ..self }
    }

    /// Leaves the points unconnected.
    pub(crate) fn scattered(self) -> Self {
        Self { scattered: true, ..self }
    }
}

/// What is drawn of the series.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Curves over numbers.
    Curves,
    /// A bar for each name and series; a point's `x` is the name's number.
    Bars,
    /// The same, the series of a name end to end.
    Stacks,
}

/// A chart.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) kind: Kind,
    /// The names of bars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) names: Vec<String>,
    #[serde(skip)]
    pub(crate) log: (bool, bool),
    /// The ticks of x; round numbers if empty.
    #[serde(skip)]
    pub(crate) ticks: Vec<f64>,
    pub(crate) series: Vec<Series>,
}

/// How many colours the page has for series.
pub(crate) const COLOURS: usize = 8;
const WIDTH: u32 = 460;
const HEIGHT: u32 = 280;
const FONT: i32 = 12;

/// The stand-ins, and what they stand for.
const INK: RGBColor = RGBColor(2, 2, 0);
const GRID: RGBColor = RGBColor(2, 2, 1);
const PAPER: RGBColor = RGBColor(2, 2, 2);
fn colour(at: usize) -> RGBColor {
    RGBColor(1, 1, (at % COLOURS) as u8)
}

impl Chart {
    /// Returns a chart of curves; `log` tells for x and y whether the axis is logarithmic.
    pub(crate) fn curves(title: &str, x: &str, y: &str, log: (bool, bool), series: Vec<Series>) -> Self {
        let (title, x, y) = (title.into(), x.into(), y.into());
        Self { title, x, y, kind: Kind::Curves, names: Vec::new(), log, ticks: Vec::new(), series }
    }

    /// Returns a chart of bars, a group for each name.
    pub(crate) fn bars(title: &str, y: &str, names: Vec<String>, series: Vec<Series>) -> Self {
        let chart = Self::curves(title, "", y, (false, false), series);
        Self { kind: Kind::Bars, names, ..chart }
    }

    /// Returns the same chart on a logarithmic scale.
    pub(crate) fn on_log(self) -> Self {
        Self { log: (self.log.0, true), ..self }
    }

    /// Returns the same chart with ticks at the values of x that there are.
    pub(crate) fn ticks(self, ticks: &[f64]) -> Self {
        Self { ticks: ticks.to_vec(), ..self }
    }

    /// Returns the same bars end to end.
    pub(crate) fn stacked(self) -> Self {
        Self { kind: Kind::Stacks, ..self }
    }

    /// Draws it.
    ///
    /// # Errors
    ///
    /// If the plotting crate cannot.
    pub(crate) fn svg(&self) -> anyhow::Result<String> {
        let height = match self.kind {
            Kind::Curves => HEIGHT,
            Kind::Stacks => 50 + 22 * self.names.len() as u32,
            Kind::Bars => 50 + (8 + 11 * self.beside()) * self.names.len() as u32,
        };
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
            match self.kind {
                Kind::Curves => self.draw_curves(&area),
                Kind::Bars | Kind::Stacks => self.draw_bars(&area),
            }
            .with_context(|| format!("cannot draw {}", self.title))?;
            area.present()?;
        }
        Ok(self.styled(&text, height))
    }

    /// Returns how many bars stand beside one another.
    fn beside(&self) -> u32 {
        self.series.iter().filter(|series| !series.printed).count().max(1) as u32
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| {
            series.points.iter().enumerate().flat_map(|(at, &(_, y))| {
                let spread = series.spread.get(at).copied().unwrap_or(0.0);
                // Below zero, or at it on a logarithmic scale, an error bar has no place.
                [(y - spread).max(if self.log.1 { y * 0.5 } else { 0.0f64.min(y) }), y + spread]
            })
        })
    }

    fn draw_curves(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        let scale = |log| if log { Scale::Log } else { Scale::Linear };
        let xs = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
        let x = Axis::new(scale(self.log.0), xs, &self.ticks);
        let y = Axis::new(scale(self.log.1), self.values(), &[]);
        let low = y.low();
        let mut chart = self.frame(area, x, y)?;
        for series in &self.series {
            let ink = colour(series.colour);
            if !series.scattered {
                chart.draw_series(LineSeries::new(series.points.iter().copied(), ink.stroke_width(2)))?;
            }
            for (&(x, y), &spread) in series.points.iter().zip(&series.spread) {
                let bar = vec![(x, (y - spread).max(low)), (x, y + spread)];
                chart.draw_series([PathElement::new(bar, ink.stroke_width(1))])?;
            }
            for &point in &series.points {
                if series.printed {
                    chart.draw_series([TriangleMarker::new(point, 7, ink.filled())])?;
                    chart.draw_series([TriangleMarker::new(point, 3, PAPER.filled())])?;
                } else {
                    chart.draw_series([Circle::new(point, 3, ink.filled())])?;
                }
            }
        }
        Ok(())
    }

    fn draw_bars(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> anyhow::Result<()> {
        let stacked = matches!(self.kind, Kind::Stacks);
        let mut sums = vec![0.0; self.names.len()];
        for &(at, value) in
            self.series.iter().filter(|series| !series.printed).flat_map(|series| &series.points)
        {
            if let Some(sum) = sums.get_mut(at as usize) {
                *sum += value;
            }
        }
        let scale = if self.log.1 { Scale::Log } else { Scale::Linear };
        let all: Vec<f64> = if stacked {
            sums.iter().copied().chain(self.values()).collect()
        } else {
            self.values().collect()
        };
        let x = Axis::new(scale, all.into_iter(), &[]);
        let low = if self.log.1 { x.low() } else { 0.0 };
        let y = Axis::new(Scale::Names(self.names.clone()), std::iter::empty(), &[]);
        let mut chart = self.frame(area, x, y)?;
        let mut begins = vec![0.0; self.names.len()];
        let each = 0.8 / f64::from(self.beside());
        let (mut bars, mut last_bar) = (0, 0);
        for series in &self.series {
            let ink = colour(series.colour);
            let lane = |place: usize| if stacked { -0.36 } else { -0.4 + place as f64 * each };
            if series.printed {
                // On the bar of ours that it stands beside: the one of its colour, or the last.
                let ours = self.series.iter().filter(|series| !series.printed);
                let place = ours.clone().position(|ours| ours.colour == series.colour).unwrap_or(last_bar);
                for &(at, value) in &series.points {
                    let centre = if stacked { at } else { at + lane(place) + 0.5 * each };
                    chart.draw_series([TriangleMarker::new((value, centre), 7, INK.filled())])?;
                    chart.draw_series([TriangleMarker::new((value, centre), 3, PAPER.filled())])?;
                }
                continue;
            }
            for (n, &(at, value)) in series.points.iter().enumerate() {
                let (from, to) = if stacked {
                    let from = begins.get(at as usize).copied().unwrap_or(0.0);
                    (from, from + value)
                } else {
                    (low, value)
                };
                if let (true, Some(begin)) = (stacked, begins.get_mut(at as usize)) {
                    *begin = to;
                }
                let thick = if stacked { 0.72 } else { each * 0.88 };
                let top = at + lane(bars);
                chart.draw_series([Rectangle::new([(from, top), (to, top + thick)], ink.filled())])?;
                if let Some(&spread) = series.spread.get(n).filter(|spread| **spread > 0.0) {
                    let middle = top + 0.5 * thick;
                    let bar = vec![((value - spread).max(low), middle), (value + spread, middle)];
                    chart.draw_series([PathElement::new(bar, INK.stroke_width(1))])?;
                }
            }
            last_bar = bars;
            bars += 1;
        }
        Ok(())
    }

    /// Draws the axes.
    fn frame<'a, 'b>(
        &self,
        area: &'a DrawingArea<SVGBackend<'b>, Shift>,
        x: Axis,
        y: Axis,
    ) -> anyhow::Result<ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>> {
        let (say_x, say_y) = (x.clone(), y.clone());
        let (format_x, format_y) = (|value: &f64| say_x.format(value), |value: &f64| say_y.format(value));
        let left = 14 + 7 * y.label_width() as u32;
        let mut chart = ChartBuilder::on(area)
            .margin_top(10)
            .margin_right(22)
            .margin_bottom(4)
            .x_label_area_size(26)
            .y_label_area_size(left)
            .build_cartesian_2d(x, y)?;
        let text = ("sans-serif", FONT).into_font().color(&INK);
        let bars = !matches!(self.kind, Kind::Curves);
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(INK).label_style(text);
        mesh.x_label_formatter(&format_x).y_label_formatter(&format_y);
        mesh.x_labels(8).y_labels(if bars { self.names.len().max(1) } else { 8 });
        if bars {
            mesh.disable_y_mesh();
        }
        mesh.draw()?;
        Ok(chart)
    }

    /// Gives an SVG the page's colours, and lets it be as wide as its place.
    fn styled(&self, svg: &str, height: u32) -> String {
        let mut text = svg.to_owned();
        for at in 0..COLOURS {
            text = text.replace(&format!("\"#01010{at}\""), &format!("\"var(--s{at})\""));
        }
        for (stand_in, name) in [("020200", "ink"), ("020201", "grid"), ("020202", "paper")] {
            text = text.replace(&format!("\"#{stand_in}\""), &format!("\"var(--{name})\""));
        }
        let head = format!("width=\"{WIDTH}\" height=\"{height}\"");
        let label = crate::html::escape(&format!("{}: {}", self.title, self.y));
        text.replacen(&head, &format!("class=\"plot\" role=\"img\" aria-label=\"{label}\""), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let points = vec![(2.0, 10.0), (4.0, 20.0), (256.0, 900.0)];
        let series = vec![
            Series::ours("a", 0, points.clone()).with_spread(vec![1.0; 3]),
            Series::printed("b", 1, points),
        ];
        Chart::curves("A <chart>", "x", "y", (true, true), series)
    }

    #[test]
    fn no_colour_is_the_crates_own() {
        let bars = Chart::bars("B", "y", vec!["one".into(), "two".into()], chart().series);
        let bars = Chart { series: vec![Series::ours("a", 3, vec![(0.0, 2.0), (1.0, 3.0)])], ..bars };
        for chart in [chart(), bars.clone(), bars.stacked()] {
            let svg = chart.svg().unwrap();
            assert!(!svg.contains("\"#"), "{svg}");
            assert!(svg.contains("var(--ink)") && svg.contains("class=\"plot\""));
            roxmltree::Document::parse(&svg).unwrap();
        }
    }

    #[test]
    fn all_that_is_drawn_is_within_the_picture() {
        let svg = chart().svg().unwrap();
        let xml = roxmltree::Document::parse(&svg).unwrap();
        for node in xml.descendants().filter(|node| node.has_tag_name("circle")) {
            let at = |name| node.attribute(name).unwrap().parse::<u32>().unwrap();
            assert!((40..WIDTH).contains(&at("cx")) && (5..HEIGHT - 25).contains(&at("cy")));
        }
    }
}
