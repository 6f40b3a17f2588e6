//! Section 4.5.1: a growing number of clients, and who talks to whom.

use tlblab::mach::{Mach, Row, Scheme};

use crate::chart::Chart;
use crate::figure::{Figure, Table, Verdict, cell, holding, percent};
use crate::lab::Lab;
use crate::rows::Rows;

use super::synthetic::curves;
use super::{Data, PAPER, SCHEMES};

/// Servers beside the clients: the thesis has three and four.
pub(super) const SERVERS: usize = 4;
/// The most clients, and as many servers where each client has its own.
const MOST: usize = 10;
const CLIENTS: &str = "1,2,4,7,8,10";
/// The schemes that are drawn.
const DRAWN: &str = "mach,ptlb,stlb-4k,ptlb+stlb";

/// A pattern: its name, what it is, and its servers.
const PATTERNS: [(&str, &str, usize); 4] = [
    ("chain", "a chain of servers, which answer one by one", SERVERS),
    ("star", "one server of four, which answers", SERVERS),
    ("ring", "a ring through all servers", SERVERS),
    ("pairs", "a server of its own for each client", MOST),
];

/// Returns the rows of each pattern, with clients that keep the processor for several requests.
///
/// # Errors
///
/// If the lab fails.
pub(super) fn rows(lab: &Lab, ipcs: &str) -> anyhow::Result<[Rows<Row>; 4]> {
    let of = |(pattern, _, servers): (&str, &str, usize)| {
        // Section 3.2.2 has the chain's with other caches, too.
        let more = if pattern == "chain" {
            ",stlb-1k,stlb-1k-2way,stlb-1k-4way,stlb-4k-2way,stlb-4k-4way"
        } else {
            ""
        };
        lab.rows::<Mach>(&format!(
            "mach --pattern {pattern} --servers {servers} --clients {CLIENTS} --handoff --scheme {DRAWN}{more}{ipcs}"
        ))
    };
    let [chain, star, ring, pairs] = PATTERNS.map(of);
    Ok([chain?, star?, ring?, pairs?])
}

/// Returns section 4.5.1.
///
/// # Errors
///
/// If the lab's rows lack a number.
pub(super) fn clients(data: &Data, lab: &Lab, ipcs: &str) -> anyhow::Result<Figure> {
    let clients: fn(&Row) -> usize = |row| row.clients;
    let about = "Kernel misses for each message, with one to ten clients that keep the processor for eight requests, as a quantum of Mach's allows \
                 them to. The thesis has the chain, with three and four servers, and describes it; it says that other patterns can be chosen, and \
                 gives nothing of them. A switch of the scheduler's from one client to the next is no message, and nothing is prefetched at it.";
    let mut figure =
        Figure::new(PAPER, "Section 4.5.1", "A growing number of clients, and who talks to whom", about);
    let (mut table, mut below, mut all) = (Vec::new(), 0, 0);
    for ((name, what, _), rows) in PATTERNS.iter().zip(&data.patterns) {
        let misses = curves(rows, clients, |row, _| row.kernel_misses_per_ipc)?;
        let last = misses[0].points.len() - 1;
        for at in 0..=last {
            let of = |scheme: usize| misses[scheme].points[at].1;
            all += 1;
            below += usize::from((1..4).all(|scheme| of(scheme) < of(0)));
        }
        let left = curves(rows, clients, |row, mach| {
            100.0 * row.kernel_misses_per_ipc / mach.kernel_misses_per_ipc
        })?;
        let end = |scheme: usize| (100.0 - left[scheme].points[0].1, 100.0 - left[scheme].points[last].1);
        let mut row = vec![(*name).to_owned(), cell(misses[0].points[0].1), cell(misses[0].points[last].1)];
        for scheme in 1..SCHEMES.len() {
            let (one, ten) = end(scheme);
            row.push(format!("{} to {}", percent(one), percent(ten)));
        }
        table.push(row);
        let title = format!("{name}: {what}");
        figure = figure
            .chart(Chart::curves(&title, "clients", "misses a message", (false, false), misses))
            .by(rows.command.clone());
    }
    // The database server of the OSDI paper, whose clients have nothing else to do, and so keep nothing.
    let database = lab
        .rows::<Mach>(&format!("mach --pattern star --servers 1 --clients 1,7,10 --scheme {DRAWN}{ipcs}"))?;
    let share =
        |row: &Row| 100.0 * (row.penalty_cycles_per_ipc + row.user_cycles_per_ipc) / row.cycles_per_ipc;
    let of = |scheme: Scheme, clients: usize| {
        database.one(&format!("{scheme:?}, {clients} clients"), |row| {
            row.scheme == scheme && row.clients == clients
        })
    };
    let (few, many) = (share(of(Scheme::Mach, 1)?), share(of(Scheme::Mach, 7)?));
    let saved =
        |scheme: Scheme| Ok::<_, anyhow::Error>((of(scheme, 1)?.speedup_pct, of(scheme, 7)?.speedup_pct));
    let late = of(Scheme::Stlb4k, MOST)?.speedup_pct;
    let (ptlb, stlb, both) = (saved(Scheme::Ptlb)?, saved(Scheme::Stlb4k)?, saved(Scheme::Both)?);
    let mach = |rows: &Rows<Row>, pick: &dyn Fn(&Row) -> bool| {
        let row = rows.one("Mach", |row| row.scheme == Scheme::Mach && pick(row))?;
        Ok::<_, anyhow::Error>(row.kernel_misses_per_ipc)
    };
    let chain = data.clients();
    let by_clients = mach(chain, &|row| row.clients == MOST)? / mach(chain, &|row| row.clients == 1)?;
    let by_servers =
        mach(&data.servers, &|row| row.servers == MOST)? / mach(&data.servers, &|row| row.servers == 1)?;
    let claims = [
        ("every scheme has fewer misses than Mach at every number of clients", below == all),
        ("more clients mean more misses", by_clients > 1.0),
        ("more clients add fewer misses than more servers do", by_clients < by_servers),
        ("with more clients of one server TLB misses take a larger part of the time", many > few),
        ("prefetching saves more then", ptlb.1 > ptlb.0),
        ("so does the cache", stlb.1 > stlb.0),
        ("both together save the most", both.1 > stlb.1.max(ptlb.1)),
    ];
    let head = ["", "Mach, 1 client", "Mach, 10 clients", "PTLB removes", "STLB removes", "both remove"];
    Ok(figure
        .table(Table::new("Kernel misses a message, from 1 client to 10", &head, table))
        .says(
            Verdict::claims(&claims),
            format!(
                "of what the thesis and the OSDI paper say, {}. Ten clients have {} times the misses a message of one, ten servers {}. With seven \
                 clients of one database server, as many as direct-mapped tables have room for, misses take {} of the time, with one {}; \
                 prefetching saves {} with one and {} with seven, the cache {} and {}, both {} and {}. With ten the cache saves {}.",
                holding(&claims),
                cell(by_clients),
                cell(by_servers),
                percent(many),
                percent(few),
                percent(ptlb.0),
                percent(ptlb.1),
                percent(stlb.0),
                percent(stlb.1),
                percent(both.0),
                percent(both.1),
                percent(late)
            ),
        )
        .by(data.servers.command.clone())
        .by(database.command))
}
