//! What is known of an entry's starts, and what follows from it for the next one.
//!
//! A mark is written before a handler starts and tells how the start ended, once that is known. A start whose end is
//! not known is that of a process that died, by this entry or by one that ran beside it. So the last attempt of such an
//! entry is made with nothing else of its kind beside it: then it is its own.

/// How the last start that was marked went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Last {
    /// The handler ended, or there was no start.
    #[default]
    Ended,
    /// Its end is not known, and others ran beside it.
    Beside,
    /// Its end is not known, and no other redelivered entry ran beside it.
    Alone,
}

/// The starts of one entry that were marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Attempts {
    pub(super) starts: u32,
    pub(super) last: Last,
    /// It may have been started once more, unmarked: as a fresh entry, by a process that died.
    pub(super) doubtful: bool,
}

/// What is to become of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Its attempts are used up.
    Exhausted,
    /// Start it, beside others.
    Beside,
    /// Start it when nothing that was let through still runs.
    Alone,
}

impl Attempts {
    /// What is to become of a delivery with these marked starts, after so many attempts of the entries it is a copy of.
    pub(super) const fn next(self, before: u32, cap: u32) -> Next {
        let used = before.saturating_add(self.starts);
        let is_last = used.saturating_add(1) >= cap;
        match self.last {
            // One more, alone, in place of the unmarked start that it did not have: others may have ended the process.
            Last::Beside if used >= cap && !self.doubtful && before == 0 && used == cap => Next::Alone,
            _ if used >= cap => Next::Exhausted,
            Last::Beside | Last::Alone if is_last => Next::Alone,
            _ => Next::Beside,
        }
    }

    /// Whether it may wait marked, however long, without harm: it has shown that it leaves its process alive, and has an
    /// attempt left should the process die meanwhile.
    pub(super) const fn may_wait(self, before: u32, cap: u32) -> bool {
        let used = before.saturating_add(self.starts);
        let is_last = used.saturating_add(1) >= cap;
        matches!(self.last, Last::Ended) && used > 0 && (!is_last || before == 0 && !self.doubtful)
    }

    /// With one start more.
    pub(super) const fn begun(self, alone: bool) -> Self {
        let last = if alone { Last::Alone } else { Last::Beside };
        Self { starts: self.starts.saturating_add(1), last, ..self }
    }

    /// With the last start ended.
    pub(super) const fn ended(self) -> Self {
        Self { last: Last::Ended, ..self }
    }

    /// As it is kept: the number of starts, `b` or `a` while the end of the last one is open, `?` if it is doubtful.
    pub(super) fn text(self) -> String {
        if self.starts == 0 {
            return String::new();
        }
        let last = match self.last {
            Last::Ended => "",
            Last::Beside => "b",
            Last::Alone => "a",
        };
        format!("{}{last}{}", self.starts, if self.doubtful { "?" } else { "" })
    }

    /// Read what is kept. None: it is no mark of ours.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, doubtful) = text.strip_suffix('?').map_or((text, false), |text| (text, true));
        let (starts, last) = match text.as_bytes().last()? {
            b'b' => (&text[..text.len() - 1], Last::Beside),
            b'a' => (&text[..text.len() - 1], Last::Alone),
            _ => (text, Last::Ended),
        };
        Some(Self { starts: starts.parse().ok()?, last, doubtful })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mark_reads_as_it_was_written() {
        for starts in [1, 7, u32::MAX] {
            for last in [Last::Ended, Last::Beside, Last::Alone] {
                for doubtful in [false, true] {
                    let attempts = Attempts { starts, last, doubtful };
                    assert_eq!(Attempts::parse(&attempts.text()), Some(attempts));
                }
            }
        }
        assert_eq!(Attempts::default().text(), "");
        for foreign in ["", "?", "b", "x", "-1", "3c", "1.5", "\u{e9}a"] {
            assert_eq!(Attempts::parse(foreign), None, "{foreign}");
        }
    }

    /// What a life of one entry shows: its runs, and how often it was started at all.
    #[derive(Debug, Default)]
    struct Life {
        runs: u32,
        ended: u32,
        given_up: bool,
    }

    /// Run an entry again and again. `events` say of each delivery what happens: it waits and the process dies, its own
    /// run ends the process, another one does, or the handler fails.
    fn live(cap: u32, kills: bool, events: &[u8]) -> Life {
        let mut life = Life::default();
        let mut mark: Option<Attempts> = None;
        let mut fresh = true;
        for event in events {
            if fresh && cap > 1 {
                fresh = false;
                match event {
                    0 => {}
                    _ if kills => life.runs += 1,
                    1 => life.runs += 1,
                    _ => {
                        (life.runs, life.ended) = (life.runs + 1, life.ended + 1);
                        mark = Some(Attempts { starts: 1, ..Attempts::default() });
                    }
                }
                continue;
            }
            let known = mark.unwrap_or(Attempts { doubtful: cap > 1, ..Attempts::default() });
            let next = known.next(0, cap);
            if next == Next::Exhausted {
                life.given_up = true;
                return life;
            }
            match event {
                // It waited in front of the gate.
                0 => {}
                // Another one ended the process beside it.
                1 if next == Next::Beside && !kills => mark = Some(known.begun(false)),
                // Nothing else ends it where it is alone: it is handled.
                1 if !kills => return life,
                _ if kills => {
                    life.runs += 1;
                    mark = Some(known.begun(next == Next::Alone));
                }
                _ => {
                    (life.runs, life.ended) = (life.runs + 1, life.ended + 1);
                    mark = Some(known.begun(next == Next::Alone).ended());
                    if life.ended >= cap {
                        life.given_up = true;
                        return life;
                    }
                }
            }
        }
        life
    }

    proptest! {
        /// One that ends its process each time it runs is given up after at most one run more than its attempts.
        #[test]
        fn a_killer_runs_at_most_once_more_than_its_attempts(cap in 1u32..6, events in prop::collection::vec(0u8..3, 0..40)) {
            let life = live(cap, true, &events);
            prop_assert!(life.runs <= cap + 1, "{:?}", life);
            let long: Vec<u8> = events.iter().copied().chain([2; 12]).collect();
            prop_assert!(live(cap, true, &long).given_up);
        }

        /// One that never fails by itself is not given up, however often processes die around it.
        #[test]
        fn a_neighbour_is_never_given_up(cap in 1u32..6, events in prop::collection::vec(0u8..2, 0..60)) {
            prop_assert!(!live(cap, false, &events).given_up);
        }
    }

    #[test]
    fn one_that_fails_every_time_has_exactly_its_attempts() {
        for cap in 1..6 {
            let life = live(cap, false, &[2; 20]);
            assert_eq!((life.runs, life.given_up), (cap, true));
        }
    }

    #[test]
    fn attempts_of_the_original_count_and_copies_have_no_start_more() {
        let none = Attempts { doubtful: true, ..Attempts::default() };
        assert_eq!((none.next(3, 3), none.next(2, 3)), (Next::Exhausted, Next::Beside));
        assert_eq!(none.begun(false).next(1, 3), Next::Alone);
        assert_eq!(Attempts::default().begun(false).next(2, 3), Next::Exhausted);
        assert_eq!(Attempts { starts: u32::MAX, ..none }.next(u32::MAX, 3), Next::Exhausted);
    }

    #[test]
    fn a_cap_that_was_lowered_ends_what_is_above_it() {
        for last in [Last::Ended, Last::Beside, Last::Alone] {
            assert_eq!(Attempts { starts: 5, last, doubtful: false }.next(0, 3), Next::Exhausted);
        }
    }
}
