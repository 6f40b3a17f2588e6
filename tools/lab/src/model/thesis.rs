//! Thesis, chapter 5: what a scheme is worth on a faster machine.
//!
//! Instruction counts are in fractions of a run time, cache misses in misses for each instruction, times in cycles.

/// An application with its operating system on a machine (5.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Instructions of application and operating system, `I_A`.
    pub(crate) i_a: f64,
    /// Instructions of the TLB miss handlers, `I_T`.
    pub(crate) i_t: f64,
    /// Cache misses for each instruction of theirs, `M_A` and `M_T`.
    pub(crate) m_a: f64,
    pub(crate) m_t: f64,
    /// Cycles to service a cache miss, `T_C`.
    pub(crate) t_c: f64,
}

impl Machine {
    /// Returns a machine whose run time is the unit, of which the instructions of the TLB miss handlers are a given part.
    /// The rest of the run time is the application's instructions and their cache misses (5.1). `None` if there is none.
    pub(crate) fn of_share(i_t: f64, m_t: f64, m_a: f64, t_c: f64) -> Option<Self> {
        let rest = 1.0 - i_t * (1.0 + m_t * t_c);
        (rest > 0.0).then(|| Self { i_a: rest / (1.0 + m_a * t_c), i_t, m_a, m_t, t_c })
    }

    /// Equations 5.1, 5.3 and 5.4: the run time.
    pub(crate) fn run_time(&self) -> f64 {
        self.i_a * (1.0 + self.m_a * self.t_c) + self.handling()
    }

    /// The time spent in handling TLB misses.
    fn handling(&self) -> f64 {
        self.i_t * (1.0 + self.m_t * self.t_c)
    }

    /// Equations 5.2, 5.5 and 5.6: the part of the run time that a scheme saves which saves the part `s_t` of handling.
    pub(crate) fn benefit(&self, s_t: f64) -> f64 {
        s_t * self.handling() / self.run_time()
    }
}

/// The factor `S_T I_T I_A / (R_new R_old)` that all differences have in common, and the cache miss rates of the old
/// machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) s_t: f64,
    /// `I_T` in parts of the old machine's run time.
    pub(crate) i_t: f64,
    /// `I_A` in parts of the new machine's run time.
    pub(crate) i_a: f64,
    pub(crate) m_t: f64,
    pub(crate) m_a: f64,
    pub(crate) t_old: f64,
    pub(crate) t_new: f64,
}

impl Change {
    /// `S_T I_T I_A / (R_new R_old)`; 0.015 with the thesis's values (5.4).
    pub(crate) fn factor(&self) -> f64 {
        self.s_t * self.i_t * self.i_a
    }

    /// Equation 5.7: how much more of the run time a scheme saves on the new machine, with the same caches. 5.8 and 5.9
    /// are this with numbers.
    pub(crate) fn same_caches(&self) -> f64 {
        self.factor() * (self.m_t - self.m_a) * (self.t_new - self.t_old)
    }

    /// Equation 5.10: the same with any caches; the rates of the new machine given.
    pub(crate) fn other_caches(&self, m_t_new: f64, m_a_new: f64) -> f64 {
        self.factor()
            * (self.t_new * (m_t_new - m_a_new) - self.t_old * (self.m_t - self.m_a)
                + self.t_new * self.t_old * (m_t_new * self.m_a - m_a_new * self.m_t))
    }

    /// Equations 5.11 and 5.14: 5.10 with the new rates as parts `gamma_t` and `gamma_a` of the old ones.
    pub(crate) fn better_caches(&self, gamma_t: f64, gamma_a: f64) -> f64 {
        let Self { m_t, m_a, t_old, t_new, .. } = *self;
        self.factor()
            * (m_t * (gamma_t * t_new - t_old) - m_a * (gamma_a * t_new - t_old)
                + t_new * t_old * m_t * m_a * (gamma_t - gamma_a))
    }

    /// Equation 5.12, the worst case: both profit alike. 5.13 is this with numbers.
    pub(crate) fn worst(&self, gamma: f64) -> f64 {
        self.factor() * (self.m_t - self.m_a) * (gamma * self.t_new - self.t_old)
    }

    /// Equation 5.15, the best case: the application does not miss any more, the handlers as before.
    pub(crate) fn best(&self) -> f64 {
        let Self { m_t, m_a, t_old, t_new, .. } = *self;
        self.factor() * (m_t * (t_new - t_old) + m_a * t_old + t_new * t_old * m_t * m_a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_special_cases_are_cases_of_the_general_one() {
        for (t_old, t_new, m_t, m_a) in
            [(24.0, 60.0, 0.07, 0.02), (10.0, 200.0, 0.3, 0.1), (24.0, 12.0, 0.05, 0.06)]
        {
            let change = Change { s_t: 0.5, i_t: 0.06, i_a: 0.5, m_t, m_a, t_old, t_new };
            assert!(close(change.other_caches(m_t, m_a), change.same_caches()));
            assert!(close(change.better_caches(1.0, 1.0), change.same_caches()));
            assert!(close(change.better_caches(0.8, 0.8), change.worst(0.8)));
            assert!(close(change.better_caches(1.0, 0.0), change.best()));
            assert!(close(change.better_caches(0.7, 0.3), change.other_caches(0.7 * m_t, 0.3 * m_a)));
        }
    }

    /// A machine by the handlers' share has that share, and a run time of one. Shares are no instruction counts: with those
    /// of the thesis in their place, the old machine's run time is 0.9 of itself.
    #[test]
    fn a_share_of_the_run_time_is_a_share_of_it() {
        let old = Machine::of_share(0.06, 0.07, 0.02, 24.0).unwrap();
        assert!(close(old.run_time(), 1.0) && close(old.i_t / old.run_time(), 0.06), "{old:?}");
        // S_T of what is spent in handlers, 0.06 (1 + 0.07 24).
        assert!(close(old.benefit(0.5), 0.0804));
        let new = Machine { t_c: 60.0, ..old };
        let change = Change {
            s_t: 0.5,
            i_t: 0.06,
            i_a: new.i_a / new.run_time(),
            m_t: 0.07,
            m_a: 0.02,
            t_old: 24.0,
            t_new: 60.0,
        };
        assert!(close(new.benefit(0.5) - old.benefit(0.5), change.same_caches()));
        assert!(Machine::of_share(0.4, 0.07, 0.02, 24.0).is_none());
    }

    /// 5.7 is no approximation of the difference of two 5.2: it is that difference.
    #[test]
    fn the_difference_of_benefits_is_equation_5_7() {
        let old = Machine { i_a: 0.6, i_t: 0.05, m_a: 0.02, m_t: 0.07, t_c: 24.0 };
        let new = Machine { t_c: 60.0, ..old };
        let change = Change {
            s_t: 0.5,
            i_t: old.i_t / old.run_time(),
            i_a: new.i_a / new.run_time(),
            m_t: old.m_t,
            m_a: old.m_a,
            t_old: old.t_c,
            t_new: new.t_c,
        };
        assert!(close(new.benefit(0.5) - old.benefit(0.5), change.same_caches()));
    }
}
