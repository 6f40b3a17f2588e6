//! The report as one HTML file that needs no other.

use std::fmt::Write;

use crate::chart::{COLOURS, Chart};
use crate::choose::Choice;
use crate::figure::{Figure, Table, Verdict};
use crate::html::escape;

/// A paper and what is shown of it.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) figures: Vec<Figure>,
}

impl Section {
    /// Returns the paper's name, without its title.
    pub(crate) fn paper(&self) -> &'static str {
        self.title.split(':').next().unwrap_or_default()
    }

    /// Returns how many figures have a verdict.
    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.figures.iter().filter(|figure| figure.verdict == verdict).count()
    }

    /// Returns how many figures have each verdict, in the order of [`Verdict::ALL`].
    pub(crate) fn counts(&self) -> [usize; Verdict::ALL.len()] {
        Verdict::ALL.map(|verdict| self.count(verdict))
    }
}

/// What a quick run is.
const QUICK: &str = "a quick run, in which no figure is missing: of a program it replays the first 20 million instructions, of one \
                     whose cycles are counted the first million of 10, and of those that share a short memory 3 million of 20; \
                     it simulates 4,000 messages of Mach for each point and less time of shootdowns; it tries fewer seeds \
                     (Elphinstone's Figure 4) and sizes of the TLB (section 5.5)";

/// Returns the page; without choices, the figures alone.
///
/// # Errors
///
/// If a chart cannot be drawn.
pub(crate) fn html(quick: bool, choices: Option<&[Choice]>, sections: &[Section]) -> anyhow::Result<String> {
    let mut page = String::new();
    page += "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    page += "<title>tlbkit: the papers' figures from this code</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n";
    page += include_str!("style.css");
    page += "</style>\n</head>\n<body>\n<h1>tlbkit: the papers' figures, from this code</h1>\n";
    let mode = if quick { QUICK } else { "a full run" };
    writeln!(
        page,
        "<p>Every curve and bar is data of this code, made by the command under its figure. Hollow triangles, and \
         cells in italics on grey, are numbers that a paper printed; they are the only ones that were typed in. This \
         is {mode}. <code>tlblab</code> stands for <code>cargo run --release -p tlblab --</code>, each command \
         prints its data with <code>--json</code>; where it has words in braces, it is run with each of them.</p>"
    )?;
    if let Some(choices) = choices {
        first_page(&mut page, choices, sections)?;
    }
    for section in sections {
        writeln!(page, "<section>\n<h2>{}</h2>", escape(section.title))?;
        for figure in &section.figures {
            draw(&mut page, figure)?;
        }
        page += "</section>\n";
    }
    page += "</body>\n</html>\n";
    Ok(page)
}

fn first_page(page: &mut String, choices: &[Choice], sections: &[Section]) -> anyhow::Result<()> {
    *page += "<h2>What to choose when</h2>\n<table class=\"choose\">\n<thead><tr><th>An address space that is</th>\
              <th>takes</th><th>because, of all that were measured</th></tr></thead>\n<tbody>\n";
    for choice in choices {
        writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{} <code>{}</code></td></tr>",
            escape(&choice.when),
            escape(&choice.take),
            escape(&choice.because),
            escape(&choice.command)
        )?;
    }
    *page += "</tbody>\n</table>\n<h2>How far the data agree with the papers</h2>\n";
    let mut head = vec!["figures and tables of"];
    head.extend(Verdict::ALL.map(Verdict::word));
    let rows = sections.iter().map(|section| {
        let counts = section.counts().map(|count| count.to_string());
        [section.paper().to_owned()].into_iter().chain(counts).collect()
    });
    table(page, &Table::new("", &head, rows.collect()))?;
    *page += "<nav>\n<ul>\n";
    for figure in sections.iter().flat_map(|section| &section.figures) {
        let (anchor, paper, at) = (figure.anchor(), figure.paper, &figure.at);
        let (at, title) = (escape(at), escape(&figure.title));
        writeln!(page, "<li><a href=\"#{anchor}\">{paper} {at}</a>: {title}</li>")?;
    }
    *page += "</ul>\n</nav>\n";
    Ok(())
}

fn draw(page: &mut String, figure: &Figure) -> anyhow::Result<()> {
    let (anchor, at, title) = (figure.anchor(), escape(&figure.at), escape(&figure.title));
    writeln!(page, "<article class=\"figure\" id=\"{anchor}\">\n<h3>{at}: {title}</h3>")?;
    writeln!(page, "<p class=\"soft\">{}</p>", escape(&figure.about))?;
    *page += "<div class=\"charts\">\n";
    for chart in &figure.charts {
        plot(page, chart)?;
    }
    *page += "</div>\n";
    for of in &figure.tables {
        table(page, of)?;
    }
    for why in &figure.lacks {
        writeln!(page, "<p class=\"soft\">Missing: {}</p>", escape(why))?;
    }
    let class = match figure.verdict {
        Verdict::Agrees => "agrees",
        Verdict::Partly => "partly",
        Verdict::Differs => "differs",
        Verdict::Open | Verdict::Input => "open",
    };
    let (word, says) = (figure.verdict.word(), escape(&figure.agreement));
    let allows = match &*figure.allows {
        "" => String::new(),
        allows => format!(" To agree: {}.", escape(allows)),
    };
    writeln!(page, "<p class=\"verdict {class}\"><b>{word}</b>: {says}{allows}</p>")?;
    let commands: Vec<_> =
        grouped(&figure.commands).iter().map(|command| format!("<code>{}</code>", escape(command))).collect();
    writeln!(page, "<p class=\"soft\">Data: {}</p>\n</article>", commands.join(" "))?;
    Ok(())
}

/// Returns the commands, those that differ in a trace or a number alone as one that lists them.
fn grouped(commands: &[String]) -> Vec<String> {
    let mut groups: Vec<Vec<Vec<&str>>> = Vec::new();
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        let differing = |group: &Vec<Vec<&str>>| {
            let first = &group[0];
            if first.len() != words.len() {
                return false;
            }
            // The group's own difference, if it has one yet, is the only one allowed.
            let with_first = first.iter().zip(&words).positions();
            let own = group.last().map_or(0, |last| first.iter().zip(last).positions());
            with_first.count_ones() <= 1 && (own == 0 || own == with_first)
        };
        match groups.iter_mut().find(|group| differing(group)) {
            Some(group) => group.push(words),
            None => groups.push(vec![words]),
        }
    }
    let join = |group: &Vec<Vec<&str>>| {
        let words = (0..group[0].len()).map(|at| {
            let mut all: Vec<&str> = group.iter().map(|words| words[at]).collect();
            all.dedup();
            either(&all)
        });
        words.collect::<Vec<_>>().join(" ")
    };
    groups.iter().map(join).collect()
}

/// Returns words as one, those that differ in braces: without the folder and the extension that they have in common.
fn either(words: &[&str]) -> String {
    let [first, rest @ ..] = words else { return String::new() };
    if rest.is_empty() {
        return (*first).to_owned();
    }
    let before = first.rfind('/').map_or("", |at| &first[..=at]);
    let before = if rest.iter().all(|word| word.starts_with(before)) { before } else { "" };
    let after = first.rfind('.').map_or("", |at| &first[at..]);
    let after = if rest.iter().all(|word| word.ends_with(after)) { after } else { "" };
    let inner = words.iter().filter_map(|word| word.get(before.len()..word.len() - after.len()));
    format!("{before}{{{}}}{after}", inner.collect::<Vec<_>>().join(","))
}

/// Where two lists of words differ, as bits.
trait Positions {
    fn positions(self) -> u64;
}

impl<'a, I: Iterator<Item = (&'a &'a str, &'a &'a str)>> Positions for I {
    fn positions(self) -> u64 {
        self.enumerate().filter(|(_, (one, other))| one != other).fold(0, |bits, (at, _)| bits | 1 << at)
    }
}

fn plot(page: &mut String, chart: &Chart) -> anyhow::Result<()> {
    let svg = chart.svg()?;
    let log = |log: bool| if log { ", logarithmic" } else { "" };
    writeln!(page, "<figure>\n<h4>{}</h4>", escape(&chart.title))?;
    let bars = !chart.names.is_empty();
    if !bars {
        writeln!(page, "<div class=\"axis\">{}{}</div>", escape(&chart.y), log(chart.log.1))?;
    }
    *page += &svg;
    let below = if bars { (&chart.y, chart.log.1) } else { (&chart.x, chart.log.0) };
    writeln!(page, "<div class=\"axis x\">{}{}</div>", escape(below.0), log(below.1))?;
    *page += "<ul class=\"legend\">";
    for series in &chart.series {
        let colour = series.colour % COLOURS;
        let printed = if series.printed { " printed" } else { "" };
        let variable = if series.printed && bars { "ink".into() } else { format!("s{colour}") };
        let name = escape(&series.name);
        write!(page, "<li><span class=\"key{printed}\" style=\"--c:var(--{variable})\"></span>{name}</li>")?;
    }
    *page += "</ul>\n</figure>\n";
    Ok(())
}

fn table(page: &mut String, table: &Table) -> anyhow::Result<()> {
    let many = if table.head.len() > 4 { " class=\"many\"" } else { "" };
    writeln!(page, "<div class=\"wide\"><table{many}>")?;
    if !table.title.is_empty() {
        writeln!(page, "<caption>{}</caption>", escape(&table.title))?;
    }
    // Words begin at the left, numbers end at the right, the head as its column.
    let class = |column: usize| {
        let wordy = |cell: &String| cell.chars().filter(|c| c.is_alphabetic()).count() > 6;
        let words = table.rows.iter().filter_map(|row| row.get(column)).any(wordy);
        match (table.printed.get(column) == Some(&true), words) {
            (true, true) => " class=\"printed words\"",
            (true, false) => " class=\"printed\"",
            (false, true) => " class=\"words\"",
            (false, false) => "",
        }
    };
    let classes: Vec<_> = (0..table.head.len()).map(class).collect();
    *page += "<thead><tr>";
    for ((name, &printed), class) in table.head.iter().zip(&table.printed).zip(&classes) {
        let word = if printed { " (printed)" } else { "" };
        write!(page, "<th{class}>{}{word}</th>", escape(name))?;
    }
    *page += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        *page += "<tr>";
        for ((cell, head), class) in row.iter().zip(&table.head).zip(&classes) {
            write!(page, "<td{class} data-head=\"{}\">{}</td>", escape(head), escape(cell))?;
        }
        *page += "</tr>\n";
    }
    *page += "</tbody>\n</table></div>\n";
    Ok(())
}

/// Returns a picture for `docs/costs.md`: the chart with its title, axes and legend in it, and its own style sheet.
///
/// # Errors
///
/// If it cannot be drawn.
pub(crate) fn picture(chart: &Chart) -> anyhow::Result<String> {
    let svg = chart.svg()?;
    let (_, inner) = svg.split_once('>').unwrap_or_default();
    let inner = inner.trim_end().trim_end_matches("</svg>");
    let sheet = include_str!("style.css");
    // The variables, which the page's sheet begins with.
    let sheet = sheet.split("@media print").next().unwrap_or_default();
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 460 376\" width=\"690\" height=\"564\">\n",
    );
    writeln!(
        text,
        "<style>\n{sheet}text {{ font: 12px system-ui, sans-serif; fill: var(--ink); }}\n</style>"
    )?;
    writeln!(text, "<rect width=\"460\" height=\"376\" fill=\"var(--paper)\"/>")?;
    writeln!(text, "<text x=\"12\" y=\"20\" style=\"font-weight:600\">{}</text>", escape(&chart.title))?;
    writeln!(text, "<text x=\"12\" y=\"38\">{}</text>", escape(&chart.y))?;
    writeln!(text, "<g transform=\"translate(0 42)\">{inner}</g>")?;
    writeln!(text, "<text x=\"438\" y=\"334\" text-anchor=\"end\">{}</text>", escape(&chart.x))?;
    for (at, series) in chart.series.iter().enumerate() {
        let (x, y) = (12 + 112 * (at % 4), 350 + 18 * (at / 4));
        let colour = series.colour % COLOURS;
        writeln!(text, "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"var(--s{colour})\"/>", x + 4, y - 4)?;
        writeln!(text, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 12, escape(&series.name))?;
    }
    text += "</svg>\n";
    Ok(text)
}

/// Returns a JSON text of all figures.
///
/// # Errors
///
/// If they cannot be written as JSON.
pub(crate) fn json(sections: &[Section]) -> anyhow::Result<String> {
    let figures: Vec<_> = sections.iter().flat_map(|section| &section.figures).collect();
    Ok(serde_json::to_string_pretty(&figures)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_differ_in_a_word_are_one() {
        let commands = ["t --trace a", "t --trace b", "t --trace a --x", "t --trace b --x", "s --pages 64"];
        let commands = commands.map(String::from);
        assert_eq!(grouped(&commands), ["t --trace {a,b}", "t --trace {a,b} --x", "s --pages 64"]);
    }

    #[test]
    fn what_words_have_in_common_stands_once() {
        assert_eq!(either(&["lab/a.tlbt", "lab/bc.tlbt"]), "lab/{a,bc}.tlbt");
        assert_eq!(either(&["64", "1024"]), "{64,1024}");
        assert_eq!(either(&["one"]), "one");
    }

    #[test]
    fn what_is_written_is_html() {
        let table = Table::new("a < b", &["x", "*y & z"], vec![vec!["1".into(), "\"2\"".into()]]);
        let figure =
            Figure::new("P", "Table 1", "t", "about").table(table).says(Verdict::Agrees, "yes").by("cmd");
        let chart = Chart::bars(
            "bars",
            "y",
            vec!["one".into()],
            vec![crate::chart::Series::ours("s", 0, vec![(0.0, 1.0)])],
        );
        let sections = [Section { title: "P 1999: title", figures: vec![figure.chart(chart)] }];
        let page = html(true, Some(&[]), &sections).unwrap();
        // HTML that is XML but for its first line and its two empty elements.
        let body = page.split_once("<body>").unwrap().1.split_once("</body>").unwrap().0;
        let xml = format!("<body>{body}</body>");
        let xml = roxmltree::Document::parse(&xml).unwrap();
        let ids: Vec<_> = xml.descendants().filter_map(|node| node.attribute("id")).collect();
        let links: Vec<_> = xml.descendants().filter_map(|node| node.attribute("href")).collect();
        assert_eq!((ids, links), (vec!["p-table-1"], vec!["#p-table-1"]));
        assert!(
            xml.descendants()
                .any(|node| node.has_tag_name("td") && node.attribute("class") == Some("printed"))
        );
        // Nothing is fetched from elsewhere.
        assert!(
            !page.contains("http://")
                || page.matches("http://").count() == page.matches("http://www.w3.org/").count()
        );
        assert!(!page.contains("https://") && !page.contains("<script"));
    }
}
