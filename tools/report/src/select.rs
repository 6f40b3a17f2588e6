//! `--figure`: one figure of a paper, or all figures of one.

use anyhow::bail;

use crate::figure::Figure;
use crate::papers::{self, Figures};

/// Returns the paper with which a figure's name begins, its title and how its figures are collected.
///
/// # Errors
///
/// If there is no such paper; the error names all.
pub(crate) fn paper(name: &str) -> anyhow::Result<(&'static str, Figures)> {
    let first = name.split_whitespace().next().unwrap_or_default();
    let found = papers::ALL.into_iter().find(|(title, _)| author(title).eq_ignore_ascii_case(first));
    let Some(found) = found else {
        let authors: Vec<_> = papers::ALL.iter().map(|(title, _)| author(title)).collect();
        bail!(
            "no paper is called `{first}`: choose {}, and then a figure or table, as in `Romer Figure 3`",
            authors.join(", ")
        );
    };
    Ok(found)
}

/// Returns the figures of that name, or of the names that begin so if none is: `Romer` chooses all of Romer's.
///
/// # Errors
///
/// If there is none; the error names all figures of the paper.
pub(crate) fn figures(name: &str, figures: Vec<Figure>) -> anyhow::Result<Vec<Figure>> {
    let called = |figure: &Figure| format!("{} {}", figure.paper, figure.at).to_lowercase();
    let asked = name.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let is_exact = figures.iter().any(|figure| called(figure) == asked);
    let (chosen, others): (Vec<_>, Vec<_>) = figures.into_iter().partition(|figure| match is_exact {
        true => called(figure) == asked,
        false => called(figure).starts_with(&asked),
    });
    if chosen.is_empty() {
        let names: Vec<_> = others.iter().map(|figure| format!("{} {}", figure.paper, figure.at)).collect();
        bail!("no figure is called `{name}`: choose one of {}", names.join(", "));
    }
    Ok(chosen)
}

/// Returns the first author of a paper's title.
fn author(title: &str) -> &str {
    title.split([',', ' ']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<Figure> {
        ["Figure 4", "Figure 4-1", "Table 2"].map(|at| Figure::new("Bala", at, "", "")).into()
    }

    fn names(name: &str) -> Vec<String> {
        figures(name, three()).unwrap().into_iter().map(|figure| figure.at).collect()
    }

    #[test]
    fn a_name_chooses_its_figure_and_a_paper_all_of_its_figures() {
        assert_eq!(names("bala figure 4"), ["Figure 4"]);
        assert_eq!(names("Bala  Figure"), ["Figure 4", "Figure 4-1"]);
        assert_eq!(names("Bala").len(), 3);
        let error = figures("Bala Figure 5", three()).unwrap_err().to_string();
        assert_eq!(
            error,
            "no figure is called `Bala Figure 5`: choose one of Bala Figure 4, Bala Figure 4-1, Bala Table 2"
        );
    }

    #[test]
    fn a_paper_is_known_by_its_first_author() {
        assert!(paper("tzou table 3.1").unwrap().0.starts_with("Tzou 1989"));
        let error = paper("Tsou").unwrap_err().to_string();
        assert!(error.contains("choose Elphinstone, Bala, Romer, Tzou"), "{error}");
    }
}
