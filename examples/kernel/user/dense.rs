//! One process that uses more pages than a TLB holds, one after the other, again and again: what superpages are for. Now and
//! then one page is needed alone: it gets another right, a child writes to it, it goes.

use crate::sys::{self, Found};
use crate::{Numbers, at, check, expect, may_stay, pattern, run as in_child, stamp};

const PAGES: usize = 320;
const ROUNDS: usize = 48;

pub(crate) fn run(numbers: &mut Numbers) {
    let own = sys::number();
    check(sys::map(at(0), PAGES), Found::Failure);
    let mut ages = [0_u16; PAGES];
    // Neighbours do not get neighbouring frames.
    for turn in 0..PAGES {
        let page = turn * 37 % PAGES;
        check(stamp(page, pattern(own, page, 0)), Found::Failure);
    }
    for round in 1..=ROUNDS {
        for (page, age) in ages.iter_mut().enumerate() {
            expect(page, pattern(own, page, (*age).into()));
            if numbers.below(8) == 0 {
                *age += 1;
                check(stamp(page, pattern(own, page, (*age).into())), Found::Failure);
            }
        }
        let page = numbers.below(PAGES);
        match round % 8 {
            2 => {
                check(sys::protect(at(page), 1, false), Found::Failure);
                check(!sys::store(at(page), 0), Found::StaleWrite);
                expect(page, pattern(own, page, ages[page].into()));
                check(sys::protect(at(page), 1, true), Found::Failure);
            }
            4 => {
                in_child(|| {
                    let child = sys::number();
                    for (page, &age) in ages.iter().enumerate() {
                        expect(page, pattern(own, page, age.into()));
                        if page % 5 == 0 {
                            check(stamp(page, pattern(child, page, 1)), Found::Failure);
                            expect(page, pattern(child, page, 1));
                        }
                    }
                });
                sys::wait();
            }
            6 => {
                check(sys::unmap(at(page), 1), Found::Failure);
                check(sys::load(at(page)).is_none() || may_stay(), Found::StaleRead);
                check(sys::map(at(page), 1), Found::Failure);
                expect(page, 0);
                ages[page] = 0;
                check(stamp(page, pattern(own, page, 0)), Found::Failure);
            }
            _ => {}
        }
    }
}
