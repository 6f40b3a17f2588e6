//! One process that maps, unmaps, moves and protects pages at random, and knows what each must be.

use crate::sys::{self, Found};
use crate::{Numbers, at, check, expect, may_stay, pattern, run as in_child, stamp};

const PAGES: usize = 512;
/// The most pages of an operation.
const RUN: usize = 24;
const ROUNDS: usize = 3000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Nothing,
    /// What it carries, and whether it may be written.
    There(usize, bool),
}

/// What the process knows of its memory.
struct Model {
    pages: [Page; PAGES],
    age: usize,
    own: usize,
}

pub(crate) fn run(numbers: &mut Numbers) {
    let mut model = Model { pages: [Page::Nothing; PAGES], age: 0, own: sys::number() };
    for round in 0..ROUNDS {
        model.step(numbers);
        if round % 500 == 250 {
            // The child finds what the parent had, and what it writes then is its own.
            in_child(|| {
                model.own = sys::number();
                model.all();
                (0..PAGES).for_each(|page| model.write(page));
                model.all();
            });
            (0..PAGES).step_by(3).for_each(|page| model.write(page));
            model.all();
        }
    }
    model.all();
    sys::wait();
}

impl Model {
    fn step(&mut self, numbers: &mut Numbers) {
        let len = 1 + numbers.below(RUN);
        let page = numbers.below(PAGES - len);
        let part = page..page + len;
        let reserved = self.pages[part.clone()].iter().filter(|&&page| page != Page::Nothing).count();
        match numbers.below(16) {
            0..4 => {
                check(sys::map(at(page), len) == (reserved == 0), Found::Failure);
                if reserved == 0 {
                    self.pages[part].fill(Page::There(0, true));
                }
            }
            4..6 => {
                check(sys::unmap(at(page), len), Found::Failure);
                self.pages[part.clone()].fill(Page::Nothing);
                part.for_each(|page| self.look(page));
            }
            6..8 => {
                let may = numbers.below(2) == 0;
                check(sys::protect(at(page), len, may) == (reserved == len), Found::Failure);
                if reserved == len {
                    for there in &mut self.pages[part.clone()] {
                        if let Page::There(_, write) = there {
                            *write = may;
                        }
                    }
                }
                part.for_each(|page| self.write(page));
            }
            8..10 => {
                let to = numbers.below(PAGES - len);
                let is_free = self.pages[to..to + len].iter().all(|&page| page == Page::Nothing);
                let possible = is_free && reserved == len;
                check(sys::remap(at(page), len, at(to)) == possible, Found::Failure);
                if possible {
                    self.pages.copy_within(part.clone(), to);
                    self.pages[part.clone()].fill(Page::Nothing);
                    (to..to + len).for_each(|page| self.look(page));
                }
                part.for_each(|page| self.look(page));
            }
            10..13 => part.for_each(|page| self.write(page)),
            _ => part.for_each(|page| self.look(page)),
        }
    }

    /// Looks whether a page is what it should be.
    fn look(&self, page: usize) {
        match self.pages[page] {
            Page::Nothing => check(sys::load(at(page)).is_none() || may_stay(), Found::StaleRead),
            Page::There(word, _) => expect(page, word),
        }
    }

    /// Writes to a page, or looks whether it must not.
    fn write(&mut self, page: usize) {
        self.age += 1;
        let word = pattern(self.own, page, self.age);
        match self.pages[page] {
            Page::There(_, true) => {
                check(stamp(page, word), Found::Failure);
                self.pages[page] = Page::There(word, true);
            }
            Page::Nothing => check(!sys::store(at(page), word) || may_stay(), Found::StaleWrite),
            Page::There(_, false) => check(!sys::store(at(page), word), Found::StaleWrite),
        }
        self.look(page);
    }

    fn all(&self) {
        (0..PAGES).for_each(|page| self.look(page));
    }
}
