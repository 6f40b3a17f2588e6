//! Where in a source file there is something to choose at run time: the expression, function or arm that a mutant
//! changes.

use std::mem;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, BinOp, Block, Expr, ExprBinary, ExprMatch, ExprUnary, ImplItemFn, ItemFn, Pat, Signature,
    TraitItemFn, UnOp,
};

/// What can be chosen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    /// Whether a function returns at once: an empty range behind the brace of its body.
    Body,
    /// Whether an arm can match: its condition, or an empty range where it would be.
    Arm,
    /// The expression itself.
    Expression,
}

/// Part of a source file, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) choice: Choice,
    pub(crate) range: Range<usize>,
    /// What a mutant of this site must lie in.
    pub(crate) covers: Range<usize>,
    /// It may be evaluated at compile time, too.
    pub(crate) constant: bool,
}

/// The sites of a file.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    pub(crate) sites: Vec<Site>,
    /// The operators between the conditions of an `if let`: none but `&&` is allowed there.
    pub(crate) chained: Vec<Range<usize>>,
    /// The operation to be visited is an operand of the one before.
    operand: bool,
    /// It is one of the conditions of an `if let`.
    condition: bool,
    /// It is in a constant function.
    constant: bool,
    /// Each arm of the `match` at hand can be done without: what none matches, `_` does.
    spare: bool,
}

impl Sites {
    /// Finds the sites of a file. What is evaluated at compile time has none, as nothing can be chosen then.
    pub(crate) fn of(source: &str) -> syn::Result<Self> {
        let mut sites = Self::default();
        sites.visit_file(&syn::parse_file(source)?);
        Ok(sites)
    }

    fn expression(&mut self, expression: &impl Spanned) {
        let range = expression.span().byte_range();
        self.sites.push(Site {
            choice: Choice::Expression,
            covers: range.clone(),
            range,
            constant: self.constant,
        });
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        let around = mem::replace(&mut self.constant, signature.constness.is_some());
        let inner = block.brace_token.span.open().byte_range().end;
        let covers = inner..block.brace_token.span.close().byte_range().start;
        self.sites.push(Site { choice: Choice::Body, range: inner..inner, covers, constant: self.constant });
        self.visit_block(block);
        self.constant = around;
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        // Operators side by side are one expression: a change of one may change how the others bind.
        let (operand, condition) = (mem::take(&mut self.operand), mem::take(&mut self.condition));
        let chained = is_logical(binary) && (condition || binds(binary));
        if chained {
            self.chained.push(binary.op.span().byte_range());
        } else if !operand {
            self.expression(binary);
        }
        for side in [&binary.left, &binary.right] {
            if let Expr::Binary(_) = **side {
                (self.operand, self.condition) = (!chained, chained);
            }
            self.visit_expr(side);
        }
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
            self.expression(unary);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, literal: &'ast syn::ExprStruct) {
        self.expression(literal);
        visit::visit_expr_struct(self, literal);
    }

    fn visit_expr_match(&mut self, expression: &'ast ExprMatch) {
        self.visit_expr(&expression.expr);
        let spare = expression.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none());
        for arm in &expression.arms {
            self.spare = spare;
            self.visit_arm(arm);
        }
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let range = match &arm.guard {
            Some((_, guard)) => {
                self.expression(guard);
                guard.span().byte_range()
            }
            None => {
                let end = arm.pat.span().byte_range().end;
                end..end
            }
        };
        // Where no `_` is without a condition, a switch in an arm leaves cases open.
        if self.spare {
            let covers = arm.span().byte_range();
            self.sites.push(Site { choice: Choice::Arm, range, covers, constant: self.constant });
        }
        visit::visit_arm(self, arm);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.function(&function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
        }
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
}

fn is_logical(binary: &ExprBinary) -> bool {
    matches!(binary.op, BinOp::And(_) | BinOp::Or(_))
}

/// Does the expression bind what it compares, as in `a && let Some(b) = c`?
fn binds(binary: &ExprBinary) -> bool {
    is_logical(binary)
        && [&binary.left, &binary.right].into_iter().any(|side| match &**side {
            Expr::Let(_) => true,
            Expr::Binary(binary) => binds(binary),
            _ => false,
        })
}
