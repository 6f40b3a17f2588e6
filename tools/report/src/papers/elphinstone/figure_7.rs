//! Figure 7: a task created and deleted.

use tlbkit_names::{C128K, G16, H8K, H128K, MPT, S128K_G16};

use crate::chart::{Chart, Series};
use crate::figure::{Figure, Table, Verdict, cell};
use crate::lab::Lab;
use crate::printed::Printed;

use super::mapping::{HOST, Of, names, places, timed};
use super::{Guest, PAPER, booted, with_guest};

/// Returns Figure 7.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn tasks(lab: &Lab, guest: &Guest, printed: &Printed) -> anyhow::Result<Figure> {
    let rows = timed(lab)?;
    let about = format!(
        "A table created, one page mapped, the table taken apart; in the kernel the task also runs and sends a message. \
         {HOST}"
    );
    let mut figure = Figure::new(PAPER, "Figure 7", "Task creation and deletion", &about);
    let said = printed.at(&["4.2 (Figure 7)", "GPT over small HPT"])?;
    let cached = printed.at(&["4.2 (Figure 7)", "a cache adds %"])?;
    let tenfold = printed.at(&["4.2 (Figure 7)", "MPT, CPT and large HPT over GPT, at least"])?;
    let (mut small, mut least, mut cheapest) = (f64::NAN, f64::NAN, false);
    let mut ratios: [Vec<String>; 2] =
        [vec!["G16 over H8k".into()], vec!["least of MPT, H128k, C128k over G16".into()]];
    let mut head = vec!["ratio"];
    for of in places(&rows, guest) {
        let mut points = Vec::new();
        for (at, name) in of.names().iter().enumerate() {
            points.push((at as f64, of.task(name)?));
        }
        let guarded = of.task(G16)?;
        small = guarded / of.task(H8K)?;
        let others = [of.task(MPT)?, of.task(H128K)?, of.task(C128K)?];
        least = others.into_iter().fold(f64::INFINITY, f64::min) / guarded;
        cheapest = points.iter().all(|(_, cost)| *cost >= guarded);
        ratios.iter_mut().zip([small, least]).for_each(|(row, ratio)| row.push(cell(ratio)));
        head.push(match of {
            Of::Host(_) => "host",
            Of::Guest(_) => "emulator",
        });
        let unit = of.unit();
        let bars = Chart::bars(&of.title("A task"), unit, names(of), vec![Series::ours(unit, 0, points)]);
        figure = figure.chart(bars.on_log());
    }
    ratios[0].push(cell(said));
    ratios[1].push(format!("more than {}", cell(tenfold)));
    head.push("*paper");
    Ok(with_guest(figure, guest).table(Table::new("", &head, ratios.to_vec())).by(rows.command).says(
        Verdict::of(small < 1.0 && least > tenfold, small < 1.0)
            .allows("less than the small HPT, and a tenth of the large tables; in part the first"),
        format!(
            "a task with GPT takes {} times one with the small HPT, {} there, and {}; the large tables take at least {} \
             times as much as GPT, more than {} there.{}",
            cell(small),
            cell(said),
            if cheapest { "nothing is cheaper, as there" } else { "something is cheaper" },
            cell(least),
            cell(tenfold),
            with_cache(guest, cached)?
        ),
    ))
}

/// Says what a software TLB in front adds to a task, if the kernel does.
fn with_cache(guest: &Guest, said: f64) -> anyhow::Result<String> {
    let Ok(rows) = guest else { return Ok(String::new()) };
    let adds = 100.0 * (booted(rows, S128K_G16, "task_insns")? / booted(rows, G16, "task_insns")? - 1.0);
    Ok(format!(
        " A software TLB in front of GPT adds {} % to a task, about {} % there: no pass over the cache is among the \
         instructions.",
        cell(adds),
        cell(said)
    ))
}
