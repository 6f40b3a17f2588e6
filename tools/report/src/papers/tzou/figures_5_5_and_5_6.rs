//! Figures 5.5 and 5.6: moving data from one address space to another, by the kernel in the emulator; Figure 5.8 and Table 5.1: what
//! it names by references.

use tlblab::shootdown::{Beyond, Way};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell, percent};
use crate::kernel::Rows;
use crate::lab::Lab;
use crate::printed::Printed;

use super::PAPER;

/// The kernel's workload.
const GUEST: &str = "--machine mips32 --work moving";

/// How a message is moved, whether its receiver reads it, and what that is called.
const WAYS: [(&str, &str, &str); 6] = [
    ("remap-lazily", "no", "remapped on demand, not accessed"),
    ("remap-at-once", "no", "remapped at once, not accessed"),
    ("remap-lazily", "yes", "remapped on demand, accessed"),
    ("remap-at-once", "yes", "remapped at once, accessed"),
    ("copy", "yes", "copied, accessed"),
    ("copy-twice", "yes", "copied twice, accessed"),
];

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn figures(lab: &Lab, printed: &Printed) -> anyhow::Result<[Figure; 3]> {
    let guest = lab.guest(GUEST);
    let throughput = match &guest {
        Ok(rows) => throughput(rows)?,
        Err(why) => unmeasured("Figure 5.5", "Moving data by remapping", why)
            .says(Verdict::Open, "the thesis plots throughput over message size on a Sun 3/50."),
    };
    let breakdown = match &guest {
        Ok(rows) => breakdown(rows, printed)?,
        Err(why) => {
            let parts = printed.names(&["Figure 5.6 (us)"]).into_iter();
            let parts =
                parts.map(|name| Ok(vec![name.into(), cell(printed.at(&["Figure 5.6 (us)", name])?)]));
            unmeasured("Figure 5.6", "What a message costs", why)
                .table(Table::new("", &["part", "*us"], parts.collect::<anyhow::Result<_>>()?))
                .says(Verdict::Open, "the thesis's numbers stand alone.")
        }
    };
    let references = match &guest {
        Ok(rows) => references(rows, printed)?,
        Err(why) => unmeasured("Figure 5.8", "References to message-passing objects", why)
            .says(Verdict::Open, "the thesis's numbers stand alone."),
    };
    Ok([beyond(lab, throughput)?, breakdown, references])
}

fn unmeasured(at: &str, title: &str, why: &str) -> Figure {
    let about = "The kernel of examples/kernel makes these data in the emulator.";
    Figure::new(PAPER, at, title, about).lacks(why).by(format!("cargo xtask boot {GUEST}"))
}

/// Returns the kernel's row of a way, and its points: kilobytes of a message, and bytes moved for each 1000 instructions.
fn curve(rows: &Rows, how: &str, accessed: &str) -> anyhow::Result<Vec<(f64, f64)>> {
    let row = rows.one(&[("kind", "moving"), ("how", how), ("accessed", accessed)])?;
    let size = |name: &str| name.strip_suffix('K')?.parse::<f64>().ok();
    let point = |kilobytes: f64| {
        let insns = row.number(&format!("{kilobytes}K"))?;
        Ok((kilobytes, 1000.0 * 1024.0 * kilobytes / insns))
    };
    let mut points: Vec<_> = row.fields().filter_map(size).map(point).collect::<anyhow::Result<_>>()?;
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(points)
}

/// Figure 5.5.
fn throughput(rows: &Rows) -> anyhow::Result<Figure> {
    let mut series = Vec::new();
    for (colour, (how, accessed, name)) in WAYS.into_iter().enumerate() {
        series.push(Series::ours(name, colour, curve(rows, how, accessed)?));
    }
    let last = |at: usize| series[at].points.last().map_or(f64::NAN, |point| point.1);
    // From which size on remapping moves more than copying once.
    let from =
        series[2].points.iter().zip(&series[4].points).find(|(remapped, copied)| remapped.1 > copied.1);
    let grows = |at: usize| series[at].points.windows(2).all(|pair| pair[0].1 < pair[1].1);
    let claims = [
        ("throughput grows with the message", (0..4).all(grows)),
        ("remapping moves more than copying once", last(3) > last(4) && last(2) > last(4)),
        ("copying twice moves least", last(5) < last(4)),
        ("what is not accessed moves fastest on demand", last(0) > last(1) && last(0) > last(2)),
        ("access costs", last(2) < last(0) && last(3) < last(1)),
    ];
    let holding = claims.iter().filter(|(_, holds)| *holds).count();
    let not: Vec<_> = claims.iter().filter(|(_, holds)| !holds).map(|(claim, _)| *claim).collect();
    let sentence = format!(
        "{holding} of {} things that the thesis shows or says hold{}{}; remapping on demand moves {} times what copying \
         does in the largest accessed message, and more {}.",
        claims.len(),
        if not.is_empty() { "" } else { "; not: " },
        not.join(", "),
        cell(last(2) / last(4)),
        from.map_or("at no size".into(), |(at, _)| format!("from {} KB on", cell(at.0)))
    );
    let about = "A message from one program to another and back, remapped or copied; its receiver reads a word of each page, \
                 or passes it on unread. Instructions of MIPS32 stand for time: trap, message, page table, flush, faults and \
                 refills. The thesis plots a Sun 3/50 and prints none of the figure's numbers; its lines for copying leave \
                 the message's own overhead out.";
    let unit = "bytes for each 1000 instructions";
    let chart = Chart::curves("Throughput", "message (KB)", unit, (true, true), series);
    Ok(Figure::new(PAPER, "Figure 5.5", "Moving data by remapping", about)
        .chart(chart.ticks(&[4.0, 8.0, 16.0, 32.0, 64.0, 128.0]))
        .says(Verdict::count(holding, claims.len()), sentence)
        .by(rows.command.clone()))
}

/// Adds what tolerating inconsistency saves for such a kernel with many CPUs.
fn beyond(lab: &Lab, figure: Figure) -> anyhow::Result<Figure> {
    let rows =
        lab.rows::<Beyond>(if lab.quick { "shootdown beyond --seconds 1" } else { "shootdown beyond" })?;
    let way = |way: &Way| {
        vec![
            way.way.to_string(),
            percent(100.0 * way.cpu_overhead_share),
            cell(way.unmaps_per_cpu_s),
            cell(way.interrupts_per_unmap),
        ]
    };
    let ways = rows.iter().map(way).collect();
    let title = "Beyond the thesis: 64 CPUs that unmap a thousand pages a second each, simulated";
    let head = ["way", "CPU overhead", "unmaps a CPU and second", "interrupts an unmap"];
    Ok(figure.table(Table::new(title, &head, ways)).by(rows.command))
}

/// The member functions of Table 5.1, and ours.
const FUNCTIONS: [[&str; 3]; 7] = [
    ["stream", "send", "Stream::send; in uni-process mode it returns Sent::Call"],
    ["stream, dual-process", "receive", "Stream::receive"],
    ["stream, dual-process", "control", "Stream::control"],
    [
        "request/reply",
        "request_reply",
        "RequestReply::request_reply; in uni-process mode it returns Sent::Call",
    ],
    ["request/reply, dual-process", "get_request", "RequestReply::get_request"],
    ["request/reply, dual-process", "send_reply", "RequestReply::send_reply"],
    ["request/reply, dual-process", "control", "RequestReply::control"],
];

/// Figure 5.8, and Table 5.1.
fn references(rows: &Rows, printed: &Printed) -> anyhow::Result<Figure> {
    let part = |name: &str| rows.one(&[("kind", "passing"), ("part", name)])?.number("insns");
    let (all, refer) = (part("all")?, part("convert_and_check_object_references")?);
    let objects = part("send_to_a_stream,_and_receive_from_one")?;
    let said = |name: &str| printed.at(&["Figure 5.6, user object references (us)", name]);
    let (send, receive, total) =
        (said("send")?, said("receive")?, printed.at(&["Figure 5.6 (us)", "total"])?);
    let (ours, theirs) = (100.0 * refer / all, 100.0 * (send + receive) / total);
    let spread = f64::max(send / receive, receive / send);
    let line = |name: &str, insns: f64, us: String, share: String| {
        vec![name.into(), cell(insns), percent(100.0 * insns / all), us, share]
    };
    let table = vec![
        line("convert and check two references", refer, cell(send + receive), percent(theirs)),
        line("send to a stream, receive from one", objects, String::new(), String::new()),
        line("a message", all, cell(total), percent(100.0)),
    ];
    let functions = FUNCTIONS.map(|row| row.map(String::from).to_vec()).to_vec();
    let about = "The program names the streams that it sends to and receives from by small integers, which the kernel looks up in the \
                 address space's table. The thesis gives the interface as Table 5.1 and the table as Figure 5.8, and what references \
                 take in its Figure 5.6.";
    Ok(Figure::new(PAPER, "Figure 5.8", "References to message-passing objects, Table 5.1", about)
        .table(Table::new("A message of 8 KB", &["part", "instructions", "share", "*us", "*share"], table))
        .table(Table::new("Table 5.1", &["*class", "*member function", "ours"], functions))
        .says(
            Verdict::factor(ours / theirs, spread, 2.0),
            format!(
                "references are {} % of a message here and {} % there; shares agree within the factor {} between the thesis's send \
                 and receive, and in part within 2. Our kernel finds the stream by an index and nothing more: the thesis does not say \
                 what it checks.",
                cell(ours),
                cell(theirs),
                cell(spread)
            ),
        )
        .by(rows.command.clone()))
}

/// Figure 5.6.
fn breakdown(rows: &Rows, printed: &Printed) -> anyhow::Result<Figure> {
    let part = |name: &str| rows.one(&[("kind", "passing"), ("part", name)])?.number("insns");
    let all = part("all")?;
    let mut ours = Vec::new();
    let mut within = 0.0;
    for row in rows.of("kind", "passing").filter(|row| row.text("part") != "all") {
        let insns = row.number("insns")?;
        within += insns;
        ours.push(vec![row.text("part").replace('_', " "), cell(insns), percent(100.0 * insns / all)]);
    }
    ours.push(vec![
        "the rest of the kernel's way".into(),
        cell(all - within),
        percent(100.0 * (all - within) / all),
    ]);
    ours.push(vec!["all".into(), cell(all), percent(100.0)]);
    let said = |name: &str| printed.at(&["Figure 5.6 (us)", name]);
    let total = said("total")?;
    let mut theirs = Vec::new();
    for name in printed.names(&["Figure 5.6 (us)"]).into_iter().filter(|name| *name != "page (KB)") {
        let us = said(name)?;
        theirs.push(vec![name.into(), cell(us), percent(100.0 * us / total)]);
    }
    // What the two have in common: PTEs taken out and put in, ownerships transferred and looked up.
    let changed = part("invalidate_PTEs,_and_flush")? + part("update_PTEs_in_page_faults")?;
    let owned = part("transfer_the_ownerships")? + part("look_ownerships_up_in_page_faults")?;
    let said_changed = said("invalidate a PTE")? + said("update a PTE")?;
    let ratio = changed / all / (said_changed / total);
    let about = "A message of 8 KB, remapped on demand and read: two pages of 4 KB here, one of 8 KB there. Its parts in \
                 instructions of MIPS32, none of them within another; the thesis's are microseconds of a Sun 3/50, some of \
                 them within others.";
    Ok(Figure::new(PAPER, "Figure 5.6", "What a message costs", about)
        .table(Table::new("Ours", &["part", "instructions", "share"], ours))
        .table(Table::new("The thesis's", &["part", "*us", "*share"], theirs))
        .says(
            Verdict::factor(ratio, 2.0, 10.0),
            format!(
                "changing PTEs is {} % of a message here and {} % there, keeping ownerships {} % here and looking up memory \
                 maps {} % there: our messages have no headers or memory maps to check, of which the \
                 thesis's send and receive, {} % of its message, are made.",
                cell(100.0 * changed / all),
                cell(100.0 * said_changed / total),
                cell(100.0 * owned / all),
                cell(100.0 * said("look up and check memory maps")? / total),
                cell(100.0 * (said("send")? + said("receive")?) / total)
            ),
        )
        .by(rows.command.clone()))
}
