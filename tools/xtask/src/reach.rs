//! What a function can reach in a compiled archive: by the relocations of its code, and of the data it refers to.
//!
//! Every function and constant has a section of its own, so a relocation says which part refers to which, whatever the
//! processor. Calls through a pointer that was made elsewhere are not seen; a table of functions that the part itself
//! refers to is.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind};

/// A section: which object of the archive, and which of its sections.
type Section = (usize, usize);

/// The sections of an archive and what they refer to.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    parts: BTreeMap<Section, Content>,
    /// Functions that others can call by name.
    names: BTreeMap<String, Section>,
}

#[derive(Debug)]
struct Content {
    name: String,
    /// The code.
    code: Vec<u8>,
    targets: Vec<Target>,
}

/// What is referred to: by place, or by name if it is in another object.
#[derive(Debug)]
enum Target {
    Section(Section),
    Name(String),
}

/// What a function reaches.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Bytes of code, its own included.
    pub(crate) bytes: u64,
    /// The code of each function.
    pub(crate) code: Vec<Vec<u8>>,
    /// The names of what it needs from elsewhere, and of functions of other objects that it calls; with the way there,
    /// section by section.
    pub(crate) names: BTreeMap<String, String>,
}

impl Reach {
    /// Reads an archive.
    pub(crate) fn of(archive: &[u8]) -> anyhow::Result<Self> {
        let mut reach = Self::default();
        for (at, member) in ArchiveFile::parse(archive)?.members().enumerate() {
            let file = object::File::parse(member?.data(archive)?).context("no object file")?;
            reach.read(at, &file)?;
        }
        Ok(reach)
    }

    fn read(&mut self, at: usize, file: &object::File<'_>) -> anyhow::Result<()> {
        for symbol in file.symbols() {
            if let (Some(section), true, Ok(name)) =
                (symbol.section_index(), symbol.is_global(), symbol.name())
            {
                self.names.entry(name.to_owned()).or_insert((at, section.0));
            }
        }
        for section in file.sections() {
            let mut targets = Vec::new();
            for (_, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let symbol = file.symbol_by_index(symbol)?;
                targets.push(match symbol.section_index() {
                    Some(section) => Target::Section((at, section.0)),
                    None => Target::Name(symbol.name()?.to_owned()),
                });
            }
            let text = section.kind() == SectionKind::Text;
            let code = if text { section.data()?.to_vec() } else { Vec::new() };
            let name = section.name()?.to_owned();
            self.parts.insert((at, section.index().0), Content { name, code, targets });
        }
        Ok(())
    }

    /// Returns the functions whose names begin so.
    pub(crate) fn named(&self, begin: &str) -> Vec<&str> {
        self.names.keys().map(String::as_str).filter(|name| name.starts_with(begin)).collect()
    }

    /// Returns what the function of that name reaches.
    pub(crate) fn from(&self, name: &str) -> Reached {
        let mut found = Reached::default();
        let mut seen = BTreeSet::new();
        let mut open: Vec<(Section, String)> =
            self.names.get(name).map(|&part| (part, String::new())).into_iter().collect();
        while let Some((part, way)) = open.pop() {
            let Some(content) = self.parts.get(&part) else { continue };
            if !seen.insert(part) {
                continue;
            }
            let way = format!("{way} > {}", content.name);
            found.bytes += content.code.len() as u64;
            found.code.push(content.code.clone());
            for target in &content.targets {
                match target {
                    Target::Section(part) => open.push((*part, way.clone())),
                    Target::Name(name) => {
                        found.names.entry(name.clone()).or_insert(way.clone());
                        open.extend(self.names.get(name).map(|&part| (part, way.clone())));
                    }
                }
            }
        }
        found
    }
}
