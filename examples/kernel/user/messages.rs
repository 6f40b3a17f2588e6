//! Two processes that send pages to and fro: what was sent is gone here, and there it is what it was.

use crate::sys::{self, Found};
use crate::{Numbers, at, check, exit, expect, pattern, stamp};

const ROUNDS: usize = 200;
const MOST: usize = 8;
/// Where messages are received.
const INBOX: usize = 100;

pub(crate) fn run(numbers: &mut Numbers) {
    let client = sys::number();
    match sys::fork() {
        Ok(None) => {
            serve(client);
            exit()
        }
        Ok(Some(server)) => {
            for round in 0..ROUNDS {
                ask(client, server, round, 1 + numbers.below(MOST));
            }
            sys::wait();
        }
        Err(()) => check(false, Found::Failure),
    }
}

fn ask(client: usize, server: usize, round: usize, pages: usize) {
    check(sys::map(at(0), pages), Found::Failure);
    (0..pages).for_each(|page| check(stamp(page, pattern(client, page, round)), Found::Failure));
    check(sys::send(server, at(0), pages), Found::Failure);
    (0..pages).for_each(|page| check(sys::load(at(page)).is_none(), Found::StaleRead));
    check(sys::receive(at(INBOX)) == pages, Found::Failure);
    (0..pages).for_each(|page| expect(INBOX + page, pattern(server, page, round)));
    check(sys::unmap(at(INBOX), pages), Found::Failure);
}

fn serve(client: usize) {
    let server = sys::number();
    for round in 0..ROUNDS {
        let pages = sys::receive(at(INBOX));
        for page in 0..pages.min(MOST) {
            expect(INBOX + page, pattern(client, page, round));
            check(stamp(INBOX + page, pattern(server, page, round)), Found::Failure);
        }
        check(sys::send(client, at(INBOX), pages), Found::Failure);
        (0..pages.min(MOST)).for_each(|page| check(sys::load(at(INBOX + page)).is_none(), Found::StaleRead));
    }
}
