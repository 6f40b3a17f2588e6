//! What a user may have meant by a word that is no name.

use strsim::osa_distance;

/// Returns the name that is nearest to `word`, if one is near: at most a third of its letters are others.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // Two letters swapped are one slip.
    let names = names.into_iter().map(|name| (osa_distance(&word, &name.to_lowercase()), name));
    let (away, name) = names.min_by_key(|&(away, _)| away)?;
    (away * 3 <= word.chars().count().max(3)).then_some(name)
}

/// Returns ` (did you mean ...?)` if a name is near.
pub fn hint<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// Returns names in lines of at most 100 letters.
pub fn lines(names: &[&str]) -> String {
    let mut lines = vec![String::new()];
    for name in names {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = format!("  {name}"),
            Some(line) if line.len() + name.len() <= 95 => *line += &format!(" | {name}"),
            _ => lines.push(format!("  {name}")),
        }
    }
    lines.join("\n")
}

/// Returns names, then the words that they are made of: a part of a name is mostly one of the two.
pub fn words<'a>(names: impl IntoIterator<Item = &'a str> + Clone) -> impl Iterator<Item = &'a str> {
    names.clone().into_iter().chain(names.into_iter().flat_map(|name| name.split(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let names = ["loom", "Miri", "fuzz", "doctests"];
        assert_eq!(nearest("lom", names), Some("loom"));
        assert_eq!(nearest("miri", names), Some("Miri"));
        assert_eq!(nearest("fzuz", names), Some("fuzz"));
        assert_eq!(nearest("doctest", names), Some("doctests"));
        assert_eq!(nearest("bench", names), None);
        assert_eq!(hint("lomo", names), " (did you mean `loom`?)");
        assert_eq!(hint("x", names), "");
        assert_eq!(hint("MTP", words(["fork 100", "MPT solo"])), " (did you mean `MPT`?)");
    }
}
