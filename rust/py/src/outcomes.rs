//! Outcomes as Python gives them: numbers, and what goes with a dead letter.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ruststream_core::letter::{Letter, Reason};
use ruststream_core::settle::Outcome;
use ruststream_core::subscription::Settled;
use ruststream_core::token::Token;

use crate::client::seconds;
use crate::errors;

const ACK: u8 = 0;
const DROP: u8 = 1;
const RETRY: u8 = 2;
const LEAVE: u8 = 3;
const DEAD_LETTER: u8 = 4;

/// The outcomes, by their names in the module.
pub(crate) const OUTCOMES: [(&str, u8); 5] =
    [("ACK", ACK), ("DROP", DROP), ("RETRY", RETRY), ("LEAVE", LEAVE), ("DEAD_LETTER", DEAD_LETTER)];

/// Whether the outcome is on its way; not, where the entry is not ours any more.
pub(crate) fn answered(py: Python<'_>, token: &Token, settled: Settled) -> PyResult<bool> {
    match settled {
        Settled::Taken => Ok(true),
        Settled::NotOurs => Ok(false),
        Settled::Twice => Err(errors::already_settled(py, &token.id().to_string())),
    }
}

/// What goes with a dead letter.
pub(crate) fn letter(to: Option<&Arc<str>>, reason: &str, error: Option<&[u8]>) -> PyResult<Arc<Letter>> {
    const REASONS: [Reason; 4] = [Reason::MaxAttempts, Reason::Rejected, Reason::DecodeError, Reason::Deleted];
    let known = REASONS.into_iter().find(|known| known.as_str() == reason);
    match (to, known) {
        (Some(to), Some(reason)) => Ok(Letter::new(to, reason, error)),
        (None, _) => Err(PyRuntimeError::new_err("the consumer has no dead-letter stream")),
        (_, None) => Err(PyRuntimeError::new_err(format!("there is no reason {reason:?} for a dead letter"))),
    }
}

/// The outcome of this number.
pub(crate) fn outcome(
    number: u8,
    delay: Option<f64>,
    letter: impl FnOnce() -> PyResult<Arc<Letter>>,
) -> PyResult<Outcome> {
    match number {
        ACK => Ok(Outcome::Ack),
        DROP => Ok(Outcome::Drop),
        RETRY => Ok(Outcome::Retry(delay.map(seconds))),
        LEAVE => Ok(Outcome::Leave),
        DEAD_LETTER => Ok(Outcome::DeadLetter(letter()?)),
        other => Err(PyRuntimeError::new_err(format!("there is no outcome {other}"))),
    }
}
