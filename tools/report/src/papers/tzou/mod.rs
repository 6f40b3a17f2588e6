//! Tzou: the performance of shootdown algorithms, which hardware each suits, and what moving data costs.

use tlblab::shootdown::Claims;

use crate::figure::Figure;
use crate::lab::Lab;
use crate::papers::inputs::{self, others};
use crate::printed;

mod figures_4_2_to_4_4;
mod figures_4_5_to_4_7;
mod figures_5_5_and_5_6;
mod locks;
mod section_4_2;
mod section_4_4_4;
mod table_2_2;
mod table_3_1;

const PAPER: &str = "Tzou";

/// Returns the figures.
///
/// # Errors
///
/// If the lab fails.
pub(crate) fn figures(lab: &Lab) -> anyhow::Result<Vec<Figure>> {
    let printed = printed::tzou()?;
    let mut figures = vec![table_2_2::damages(lab, &printed)?, table_3_1::algorithms(lab, &printed)?];
    for (figure, algorithm) in [("4.2", "2-phase"), ("4.3", "op-synch"), ("4.4", "op-asynch")] {
        figures.push(figures_4_2_to_4_4::verified(lab, figure, algorithm)?);
    }
    let claims = lab.rows::<Claims>("shootdown claims")?;
    for (figure, title, x, section) in [
        ("4.5", "The number of CPUs", "CPUs of an operation", "4.4.2"),
        ("4.6", "The time between requests", "ms between requests", "4.4.3"),
        ("4.7", "The service time", "ms of a reply", "4.4.4"),
    ] {
        let drawn = figures_4_5_to_4_7::performance(lab, &claims, figure, title, x, section)?;
        figures.push(if figure == "4.5" { locks::beyond(lab, drawn)? } else { drawn });
    }
    figures.extend([section_4_2::algorithms(lab)?, section_4_4_4::spur(lab, &printed)?]);
    figures.extend(figures_5_5_and_5_6::figures(lab, &printed)?);
    figures.push(others(PAPER, inputs::TZOU));
    Ok(figures)
}

/// Returns the text at a place of a printed list.
fn text(said: &serde_json::Value, at: usize) -> String {
    said[at].as_str().unwrap_or_default().to_owned()
}
