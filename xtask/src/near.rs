//! What a user may have meant by a word that is no name.

/// Returns the name that is nearest to `word`, if one is near: at most a third of its letters are others.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names = names.into_iter().map(|name| (distance(&word.to_lowercase(), &name.to_lowercase()), name));
    let (away, name) = names.min_by_key(|&(away, _)| away)?;
    (away * 3 <= word.chars().count().max(3)).then_some(name)
}

/// Returns ` (did you mean ...?)` if a name is near.
pub(crate) fn hint<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// Returns names in lines of at most 100 letters.
pub(crate) fn lines(names: &[&str]) -> String {
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
pub(crate) fn words<'a>(names: impl IntoIterator<Item = &'a str> + Clone) -> impl Iterator<Item = &'a str> {
    names.clone().into_iter().chain(names.into_iter().flat_map(|name| name.split(' ')))
}

/// Returns how many letters must be changed, added, left out, or swapped with the next one to get from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for at in 0..=one.len() {
        for to in 0..=other.len() {
            rows[at][to] = if at == 0 || to == 0 {
                at + to
            } else {
                let same = one[at - 1] == other[to - 1];
                let changed = rows[at - 1][to - 1] + usize::from(!same);
                let least = changed.min(rows[at - 1][to] + 1).min(rows[at][to - 1] + 1);
                let swapped =
                    at > 1 && to > 1 && one[at - 1] == other[to - 2] && one[at - 2] == other[to - 1];
                if swapped { least.min(rows[at - 2][to - 2] + 1) } else { least }
            };
        }
    }
    rows[one.len()][other.len()]
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
