//! Recording a trace.

use std::collections::HashSet;
use std::io::{self, Seek, SeekFrom, Write};

use lzma_rust2::{Lzma2Options, Lzma2Writer};

use super::format::{BLOCK, Coder};
use super::{Access, Counts, Header};

/// Writes a trace file: [`create`](Self::create), [`push`](Self::push) each access, [`finish`](Self::finish).
///
/// Without `finish` the file has neither its counts nor its end, and readers call it truncated. Memory grows with the
/// number of different pages, for the header's count, and with nothing else.
#[derive(Debug)]
pub(crate) struct Writer<W: Write + Seek> {
    out: W,
    header: Header,
    coder: Coder,
    /// The run that the next access may still continue.
    run: Option<Access>,
    block: Vec<u8>,
    pages: HashSet<usize>,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a trace with `header`, whose counts are ignored.
    ///
    /// # Errors
    ///
    /// If `out` cannot be written.
    pub(crate) fn create(mut out: W, mut header: Header) -> io::Result<Self> {
        header.counts = Counts::default();
        out.write_all(&header.encode())?;
        let pages = HashSet::new();
        Ok(Self { out, header, coder: Coder::default(), run: None, block: Vec::new(), pages })
    }

    /// Appends `access`, which must have a count; it joins the run before it if there is no difference.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the trace is not worth anything then.
    pub(crate) fn push(&mut self, access: Access) -> io::Result<()> {
        if let Some(run) = &mut self.run
            && run.absorb(&access)
        {
            return Ok(());
        }
        match self.run.replace(access) {
            Some(run) => self.put(&run),
            None => Ok(()),
        }
    }

    /// Returns what has been recorded so far, without the run that is still open.
    pub(crate) fn counts(&self) -> Counts {
        Counts { pages: self.pages.len() as u64, ..self.header.counts }
    }

    fn put(&mut self, run: &Access) -> io::Result<()> {
        self.pages.insert(run.page.get());
        self.header.counts.add(run);
        // A run takes at most 1 + 5 + 10 bytes.
        if self.block.len() + 16 > BLOCK {
            self.end_block()?;
        }
        self.coder.encode(run, &mut self.block);
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut options = Lzma2Options::with_preset(6);
        options.lzma_options.dict_size = (self.block.len() as u32).max(4096);
        let mut packer = Lzma2Writer::new(Vec::new(), options);
        packer.write_all(&self.block)?;
        let packed = packer.finish()?;
        self.out.write_all(&(packed.len() as u32).to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&packed).to_le_bytes())?;
        self.out.write_all(&packed)?;
        self.block.clear();
        Ok(())
    }

    /// Writes what is left, the end mark and, back at the beginning, the counts.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn finish(mut self) -> io::Result<Counts> {
        if let Some(run) = self.run.take() {
            self.put(&run)?;
        }
        self.end_block()?;
        self.out.write_all(&0u32.to_le_bytes())?;
        self.header.counts = self.counts();
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&self.header.encode())?;
        self.out.flush()?;
        Ok(self.header.counts)
    }
}
