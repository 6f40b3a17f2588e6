//! Table 4.2: rates of misses.

use tlblab::mach::Scheme;

use crate::figure::{Figure, Table, Verdict, cell};

use super::applications::app;
use super::{APPS, Data, PAPER};

/// Returns Table 4.2.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn rates(data: &Data) -> anyhow::Result<Figure> {
    let (mut rows, mut most) = (Vec::new(), (String::new(), 0.0));
    for name in APPS {
        let of = |column| data.thesis.at(&["Table 4.2", name, column]);
        let ours = app(data, name, Scheme::Mach)?.kernel_misses_per_ipc;
        let rate = of("misses/s")?;
        if rate > most.1 {
            most = (name.to_owned(), rate);
        }
        rows.push(vec![name.into(), cell(ours), cell(of("misses")?), cell(of("seconds")?), cell(rate)]);
    }
    Ok(Figure::new(PAPER, "Table 4.2", "Rates of misses", "The model has no seconds of an application: misses are per message.")
        .table(Table::new("", &["application", "misses a message, ours", "*misses", "*seconds", "*misses/s"], rows))
        .says(Verdict::Input, format!("the instructions that the stand-ins run between two messages are estimated from these rates, so they cannot be tested by them; the thesis has {} first.", most.0))
        .by(data.apps.command.clone()))
}
