//! Reading a trace that is text: line by line, each with at most one reference.
//!
//! What a line says is for the program that wrote it: [`lackey`], [`dynamorio`].

use std::io::{BufRead, Read};

use tlbkit_addr::{PageSize, VirtAddr, Vpn};

use super::{Access, Kind, PROGRAM, TraceError, dynamorio, lackey};

/// What is longer than what says something; no more of a line is kept.
const LINE: u64 = 128;

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A reference to so many bytes at an address.
    Reference(Kind, usize, usize),
    /// What follows is of this program.
    Program(usize),
    /// A message.
    Message,
    /// Nothing of the program.
    Nothing,
    /// That no reference follows.
    End,
}

/// Who writes such lines, and how to read one; none if it is malformed. The line has no end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syntax {
    pub(super) of: &'static str,
    pub(super) read: fn(&[u8]) -> Option<Said>,
}

/// Streams the accesses of a text.
///
/// A malformed line is an error after which the iterator goes on with the next line, for callers that skip it;
/// any other error ends it.
#[derive(Debug)]
pub(crate) struct Text<R: BufRead> {
    syntax: Syntax,
    input: R,
    page: PageSize,
    line: Vec<u8>,
    number: u64,
    offset: u64,
    /// The run that the next line may still continue.
    run: Option<Access>,
    /// The next page of a line that touches several, and the last.
    next: Option<(Access, Vpn)>,
    /// An error that waits until the run before it is out.
    error: Option<TraceError>,
    done: bool,
    messages: Messages,
    /// The program whose lines these are.
    program: usize,
}

/// What valgrind's messages say of the program. `--trace-signals=yes` adds those of signals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Messages {
    /// How many children ended, if not several of them at once.
    pub(crate) children: u32,
    /// Empty messages: one after the banner, and one when the program ends. What calls `exec` ends as another program, of which
    /// valgrind says nothing.
    pub(crate) empty: u32,
}

impl Messages {
    fn hear(&mut self, text: &[u8]) {
        const CHILD: &[u8] = b"(SIGCHLD)";
        self.empty += u32::from(text.starts_with(b"==") && text.ends_with(b"=="));
        self.children += u32::from(text.windows(CHILD.len()).any(|word| word == CHILD));
    }
}

impl<R: BufRead> Text<R> {
    /// Reads accesses to pages of size `page` from lackey's text.
    pub(crate) fn lackey(input: R, page: PageSize) -> Self {
        Self::new(lackey::SYNTAX, input, page)
    }

    /// Reads accesses to pages of 4 KB from what DynamoRIO's view tool prints.
    pub(crate) fn dynamorio(input: R) -> Self {
        Self::new(dynamorio::SYNTAX, input, PageSize::K4)
    }

    fn new(syntax: Syntax, input: R, page: PageSize) -> Self {
        let line = Vec::new();
        Self {
            syntax,
            input,
            page,
            line,
            number: 0,
            offset: 0,
            run: None,
            next: None,
            error: None,
            done: false,
            messages: Messages::default(),
            program: 0,
        }
    }

    /// Returns what was said so far.
    pub(crate) fn messages(&self) -> Messages {
        self.messages
    }

    /// Returns the next reference, the rest of it in `next`; `None` at the end.
    fn reference(&mut self) -> Result<Option<Access>, TraceError> {
        loop {
            self.line.clear();
            let begin = self.offset;
            let read = self.read_line();
            self.number += 1;
            if !read.map_err(|error| TraceError::from_read(error, self.offset))? {
                return Ok(None);
            }
            let text = self.line.trim_ascii_end();
            match (self.syntax.read)(text) {
                Some(Said::Reference(kind, at, size)) => {
                    let Some((access, last)) = self.access(kind, at, size) else {
                        return Err(self.bad_line(begin));
                    };
                    self.after(access, last);
                    return Ok(Some(access));
                }
                Some(Said::Program(program)) => self.program = program,
                Some(Said::Message) => self.messages.hear(text),
                Some(Said::Nothing) => {}
                Some(Said::End) => return Ok(None),
                None => return Err(self.bad_line(begin)),
            }
        }
    }

    /// Returns a reference of the program whose lines these are, and the last page that it touches; none if there is no such reference.
    fn access(&self, kind: Kind, at: usize, size: usize) -> Option<(Access, Vpn)> {
        // No operand is larger than a page: one that claims to be is damage.
        if size == 0 || size > PageSize::K4.bytes() {
            return None;
        }
        // The first program has all addresses.
        if self.program > 0 && at >> PROGRAM != 0 {
            return None;
        }
        let first = VirtAddr::new(self.program << PROGRAM | at);
        let last = first.checked_add(size - 1)?;
        Some((Access { kind, count: 1, page: first.vpn(self.page) }, last.vpn(self.page)))
    }

    /// Notes what follows a reference whose last page is `last`.
    fn after(&mut self, access: Access, last: Vpn) {
        let kind = if access.kind == Kind::Instr { Kind::Rest } else { access.kind };
        let next = || Some((Access { kind, page: access.page.checked_add(1)?, ..access }, last));
        self.next = if access.page == last { None } else { next() };
    }

    /// Reads a line, or the beginning of one too long and past the rest, and tells whether there was any.
    fn read_line(&mut self) -> std::io::Result<bool> {
        let mut read = (&mut self.input).take(LINE).read_until(b'\n', &mut self.line)? as u64;
        self.offset += read;
        let any = read > 0;
        let mut rest = Vec::new();
        while read == LINE && !self.line.ends_with(b"\n") && !rest.ends_with(b"\n") {
            rest.clear();
            read = (&mut self.input).take(LINE).read_until(b'\n', &mut rest)? as u64;
            self.offset += read;
        }
        Ok(any)
    }

    #[cold]
    fn bad_line(&self, offset: u64) -> TraceError {
        let text = self.line.trim_ascii_end();
        let text = text[..text.len().min(40)].escape_ascii().to_string().into();
        TraceError::Line { line: self.number, offset, of: self.syntax.of, text }
    }
}

impl<R: BufRead> Iterator for Text<R> {
    type Item = Result<Access, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            let next = match self.next.take() {
                Some((access, last)) => {
                    self.after(access, last);
                    Ok(Some(access))
                }
                None if self.done => Ok(None),
                None => self.reference(),
            };
            match next {
                Ok(Some(next)) => {
                    if !self.run.as_mut().is_some_and(|run| run.absorb(&next))
                        && let Some(run) = self.run.replace(next)
                    {
                        return Some(Ok(run));
                    }
                }
                Ok(None) => {
                    self.done = true;
                    return self.run.take().map(Ok);
                }
                Err(error) => {
                    self.done = !matches!(error, TraceError::Line { .. });
                    self.error = Some(error);
                    if let Some(run) = self.run.take() {
                        return Some(Ok(run));
                    }
                }
            }
        }
    }
}

/// Reads a number, which has no sign.
pub(super) fn digits(text: &[u8], radix: u32) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0usize, |value, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        value.checked_mul(radix as usize)?.checked_add(digit as usize)
    })
}
