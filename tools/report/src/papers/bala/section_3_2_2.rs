//! Section 3.2.2, and sections 4.1 and 4.2 of the OSDI paper: set-associative software caches.

use anyhow::Context;
use tlblab::mach::{Row, Scheme};

use crate::figure::{Figure, Table, Verdict, cell, holding, percent};
use crate::rows::{Rows, mean};

use super::{Data, PAPER};

/// The caches of either size: direct-mapped, two ways, four ways.
const SIZES: [(&str, [Scheme; 3]); 2] = [
    ("1K", [Scheme::Stlb1k, Scheme::Stlb1k2Way, Scheme::Stlb1k4Way]),
    ("4K", [Scheme::Stlb4k, Scheme::Stlb4k2Way, Scheme::Stlb4k4Way]),
];

/// Returns section 3.2.2.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn organizations(data: &Data) -> anyhow::Result<Figure> {
    let hits = |rows: &Rows<Row>, scheme: Scheme, pick: &dyn Fn(&Row) -> bool| {
        let row = rows.one(&format!("{scheme:?}"), |row| row.scheme == scheme && pick(row))?;
        Ok::<_, anyhow::Error>((100.0 * row.stlb_hit_rate.context("no hit rate")?, row.speedup_pct))
    };
    let mut rows = Vec::new();
    // The points of hits that two ways and four add to one, and whether the second way saves less time: of one client, by size.
    let mut one_client = [Vec::new(), Vec::new()];
    let mut several = Vec::new();
    for (at, (size, schemes)) in SIZES.into_iter().enumerate() {
        let mut case = |name: String, of: &Rows<Row>, pick: &dyn Fn(&Row) -> bool| {
            let [direct, two, four] = schemes.map(|scheme| hits(of, scheme, pick));
            let (direct, two, four) = (direct?, two?, four?);
            let cells =
                [direct, two, four].into_iter().flat_map(|(hits, saved)| [percent(hits), percent(saved)]);
            rows.push([format!("{size}, {name}")].into_iter().chain(cells).collect::<Vec<_>>());
            Ok::<_, anyhow::Error>((two.0 - direct.0, four.0 - direct.0, two.1 <= direct.1))
        };
        for servers in [1, 2, 4, 7, 8, 10] {
            let name = format!("1 client, {servers} in a chain");
            one_client[at].push(case(name, &data.servers, &|row| row.servers == servers)?);
        }
        one_client[at].push(case("three programs that talk".into(), &data.talk, &|_| true)?);
        for clients in [2, 4, 8, 10] {
            let name = format!("{clients} clients, {} in a chain", super::section_4_5_1::SERVERS);
            let gain = case(name, data.clients(), &|row| row.clients == clients)?;
            several.extend((size == "4K").then_some(gain.0));
        }
    }
    let near = |gain: f64| gain.abs() <= 5.0;
    let two_large = one_client[1].iter().filter(|case| near(case.0)).count();
    let all = one_client.concat();
    let comparable = all.iter().filter(|case| near(case.0) && near(case.1)).count();
    let servers = mean(&one_client[1].iter().map(|case| case.0).collect::<Vec<_>>()).0;
    let clients = mean(&several).0;
    let four = one_client[0].iter().map(|case| case.1).fold(f64::NEG_INFINITY, f64::max);
    let claims = [
        (
            "large direct-mapped caches hit about as often as two ways (within five points)",
            two_large == one_client[1].len(),
        ),
        ("all sizes hit about as often as two and four ways", comparable == all.len()),
        ("with one client a second way takes more time than it saves", all.iter().all(|case| case.2)),
        (
            "two ways of 4K hit slightly more often with one client and several servers",
            servers > 0.0 && near(servers),
        ),
        ("more so with several clients", clients > servers),
    ];
    let about = "Hits of the software cache, and run time saved over Mach, of a direct-mapped cache, two ways and four ways, of 1024 and of 4096 \
                 entries. The papers give the numbers of direct-mapped caches alone; of the others they say what is compared here. Each \
                 way that is searched in vain takes 65 cycles, as the thesis measured it for the second.";
    let head = ["", "1 way: hits", "saved", "2 ways: hits", "saved", "4 ways: hits", "saved"];
    Ok(Figure::new(PAPER, "Section 3.2.2, OSDI 4.1 and 4.2", "Set-associative software caches", about)
        .table(Table::new("", &head, rows))
        .says(
            Verdict::claims(&claims),
            format!(
                "of what the papers say, {}. Direct-mapped caches hit about as often as two and four ways in {comparable} of {} cases of one \
                 client. A second way of 4K adds {} points of hits with one client and {} with several. Four ways of 1K, which the OSDI paper \
                 studied without numbers, add up to {} points to one.",
                holding(&claims),
                all.len(),
                cell(servers),
                cell(clients),
                cell(four)
            ),
        )
        .by(data.servers.command.clone())
        .by(data.clients().command.clone())
        .by(data.talk.command.clone()))
}
