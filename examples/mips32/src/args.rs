//! What the command line asks for.
//!
//! Words of the form `name=value`, or a name alone: `table=MPT write=index`.

use core::fmt;

/// The wishes.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The table's name.
    pub table: &'static str,
}

/// A word that the kernel does not know.
#[derive(Clone, Copy, Debug)]
pub struct Unknown(&'static str);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel does not know the argument `{}`", self.0)
    }
}

impl Args {
    /// Reads the words.
    ///
    /// # Errors
    ///
    /// [`Unknown`], with the first word that says nothing.
    pub fn parse(words: &'static str) -> Result<Self, Unknown> {
        let mut args = Self { table: "MPT" };
        for word in words.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("table", name) => args.table = name,
                _ => return Err(Unknown(word)),
            }
        }
        Ok(args)
    }
}
