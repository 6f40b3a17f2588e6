//! The picture of `docs/costs.md`: how long a few subjects take at the jobs that a kernel does most, as ratios to `x86_64`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::places;
use crate::shell::Line;

/// What the picture shows, from top to bottom.
const JOBS: [&str; 13] = [
    "lookup dense",
    "lookup sparse",
    "lookup far miss, sparse",
    "map page",
    "unmap page",
    "protect page",
    "replace page",
    "map 128",
    "unmap 128",
    "protect 128",
    "fault cc1",
    "fork replace",
    "destroy",
];

/// The subjects, with the style sheet's colour of each; those that are not ours are drawn hollow.
const SUBJECTS: [(&str, &str, bool); 8] = [
    ("X86 solo", "--s0", true),
    ("AddressSpace X86", "--s5", true),
    ("MPT solo", "--s2", true),
    ("GA solo", "--s3", true),
    ("HR solo", "--s4", true),
    ("CPT8 solo", "--s6", true),
    ("page_table_multiarch", "--s1", false),
    ("page-table-generic", "--s7", false),
];

/// What every ratio is to.
const BASE: &str = "x86_64";

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 66.0;
const ROW: f64 = 24.0;

/// A subject's ratio at a job.
struct Dot {
    job: String,
    subject: String,
    ratio: f64,
}

/// Measures what the picture shows and draws it.
///
/// # Errors
///
/// If the file cannot be written, which is known first, or nothing can be measured.
pub(super) fn draw(file: &Path, summary: &Line) -> anyhow::Result<()> {
    places::can_write("--picture", file)?;
    let parts = JOBS.iter().flat_map(|job| SUBJECTS.map(|(subject, ..)| format!("{job}/{subject}")));
    let line = summary.clone().with(parts);
    let output = line.command().stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run `{line}`"))?;
    ensure!(output.status.success(), "failed ({}); to repeat it: {line}", output.status);
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).context("the summary is no JSON")?;
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let dots: Vec<_> = rows
        .iter()
        .filter(|row| row["to"] == BASE)
        .map(|row| Dot {
            job: text(row, "job"),
            subject: text(row, "subject"),
            ratio: row["ratio"].as_f64().unwrap_or(f64::NAN),
        })
        .filter(|dot| dot.ratio > 0.0)
        .collect();
    ensure!(!dots.is_empty(), "the summary has no ratio to {BASE}");
    let host = ["machine", "cpu", "compiler"].map(|field| text(&rows[0], field)).join("; ");
    let picture = svg(&dots, &host);
    fs::write(file, picture).with_context(|| format!("cannot write --picture {}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}

/// Returns the picture: a row for each job, a mark for each subject on a logarithmic scale.
fn svg(dots: &[Dot], host: &str) -> String {
    let shown = |dot: &&Dot| {
        JOBS.contains(&dot.job.as_str()) && SUBJECTS.iter().any(|(name, ..)| *name == dot.subject)
    };
    let ratios: Vec<f64> = dots.iter().filter(shown).map(|dot| dot.ratio.log10()).collect();
    let low = ratios.iter().copied().fold(-1.0, f64::min).floor();
    let high = ratios.iter().copied().fold(1.0, f64::max).ceil();
    let x = |ratio: f64| LEFT + (ratio.log10() - low) / (high - low) * (RIGHT - LEFT);
    let bottom = TOP + ROW * JOBS.len() as f64;
    let legend = bottom + 44.0;
    let height = legend + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n{STYLE}\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"var(--paper)\"/>\n"
    );
    let mut text = |x: f64, y: f64, style: &str, words: &str| {
        _ = writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\"{style}>{}</text>", escaped(words));
    };
    text(
        12.0,
        20.0,
        " style=\"font-weight:600\"",
        "Time of an operation, as a ratio to the crate x86_64 in the same run",
    );
    text(12.0, 38.0, " class=\"soft\"", host);
    text(LEFT, bottom + 34.0, " class=\"soft\"", "\u{2190} faster");
    text(RIGHT, bottom + 34.0, " class=\"soft\" text-anchor=\"end\"", "slower \u{2192}");
    for (at, job) in JOBS.iter().enumerate() {
        text(LEFT - 10.0, TOP + ROW * (at as f64 + 0.5) + 4.0, " text-anchor=\"end\"", job);
    }
    for power in low as i32..=high as i32 {
        let ratio = 10f64.powi(power);
        let label = if power < 0 { format!("{ratio}") } else { format!("{ratio:.0}") };
        text(x(ratio), bottom + 16.0, " class=\"soft\" text-anchor=\"middle\"", &label);
    }
    for (at, (subject, ..)) in SUBJECTS.iter().enumerate() {
        let [left, y] = place(at, legend);
        text(left + 12.0, y + 4.0, "", subject);
    }
    for power in low as i32..=high as i32 {
        let (at, colour) = (x(10f64.powi(power)), if power == 0 { "ink" } else { "grid" });
        _ = writeln!(svg, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"var(--{colour})\"/>");
    }
    for at in 0..=JOBS.len() {
        let y = TOP + ROW * at as f64;
        _ = writeln!(svg, "<path d=\"M{LEFT} {y}H{RIGHT}\" stroke=\"var(--grid)\"/>");
    }
    for dot in dots.iter().filter(shown) {
        let row = JOBS.iter().position(|job| *job == dot.job).unwrap_or_default();
        let at = SUBJECTS.iter().position(|(name, ..)| *name == dot.subject).unwrap_or_default();
        // Each subject has a height of its own within the row, so that marks of one ratio do not hide each other.
        let y = TOP + ROW * (row as f64 + (at as f64 + 1.0) / (SUBJECTS.len() as f64 + 1.0));
        let title = format!("{}, {}: {:.2}", dot.job, dot.subject, dot.ratio);
        mark(&mut svg, at, x(dot.ratio), y, &title);
    }
    for (at, (subject, ..)) in SUBJECTS.iter().enumerate() {
        let [left, y] = place(at, legend);
        mark(&mut svg, at, left, y, subject);
    }
    svg + "</svg>\n"
}

/// Returns where the legend has a subject's mark: four in a line.
fn place(at: usize, legend: f64) -> [f64; 2] {
    [24.0 + 185.0 * (at % 4) as f64, legend + 18.0 * (at / 4) as f64 + 8.0]
}

fn mark(svg: &mut String, subject: usize, x: f64, y: f64, title: &str) {
    let (_, colour, ours) = SUBJECTS[subject];
    let fill = if ours { format!("var({colour})") } else { "var(--paper)".to_owned() };
    _ = writeln!(
        svg,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"var({colour})\" stroke-width=\"1.5\"><title>{}</title></circle>",
        escaped(title)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The colours of the report's pictures, light and dark.
const STYLE: &str = "<style>
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1c2024; --soft: #5b6470; --grid: #d9dee3;
  --s0: #1b6ac9; --s1: #c8501e; --s2: #1d8a4c; --s3: #8f3fb5; --s4: #b8890b; --s5: #0b8f9c; --s6: #c22e6f; --s7: #6b7580;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e9ec; --soft: #a3adb8; --grid: #333a41;
    --s0: #6ab0ff; --s1: #ff9257; --s2: #58cf8c; --s3: #cf8cf2; --s4: #e6c14d; --s5: #4fd3df; --s6: #ff7fb2; --s7: #a7b1bb;
  }
}
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); }
</style>";

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of a picture.
    fn words(svg: &str) -> Vec<&str> {
        let texts = svg.split("<text ").skip(1);
        texts.filter_map(|text| text.split_once('>')?.1.split("</text>").next()).collect()
    }

    /// The page shows a picture of this form, with all jobs and subjects. Its times are of one machine, and are not compared.
    #[test]
    fn the_page_shows_a_picture_of_this_form() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let page = fs::read_to_string(format!("{root}/docs/costs.md")).unwrap();
        assert!(page.contains("](bench.svg)"));
        assert!(page.contains("cargo xtask bench --picture docs/bench.svg"));
        let shown = fs::read_to_string(format!("{root}/docs/bench.svg")).unwrap();
        assert!(shown.starts_with("<svg ") && shown.ends_with("</svg>\n") && shown.contains(STYLE));
        let words = words(&shown);
        for name in JOBS.into_iter().chain(SUBJECTS.map(|(subject, ..)| subject)) {
            assert!(words.contains(&name), "the picture lacks {name}: make it anew");
        }
        for (job, (subject, ..)) in JOBS.iter().flat_map(|job| SUBJECTS.map(|subject| (job, subject))) {
            assert!(
                shown.contains(&format!("<title>{job}, {subject}: ")),
                "no mark for {subject} at {job}: make it anew"
            );
        }
    }

    #[test]
    fn marks_stand_where_their_ratios_are() {
        let dot = |ratio| Dot { job: "map page".into(), subject: "MPT solo".into(), ratio };
        let place = |ratio: f64| -> f64 {
            let picture = svg(&[dot(ratio), dot(0.01), dot(100.0)], "a <CPU>");
            assert!(picture.contains("a &lt;CPU&gt;"));
            picture.split("<circle cx=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert!((place(1.0) - (LEFT + RIGHT) / 2.0).abs() < 0.1);
        assert!((place(0.01) - LEFT).abs() < 0.1 && (place(100.0) - RIGHT).abs() < 0.1);
    }
}
