//! How deliveries of a consumer are settled: by an outcome, or by a reply.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PySequence;
use ruststream_core::append::{Append, Trim};
use ruststream_core::backoff::growing;
use ruststream_core::entry::KEYLESS;
use ruststream_core::header;
use ruststream_core::publish::check_size;
use ruststream_core::settle::Outcome;
use ruststream_core::subscription::Settled;
use ruststream_core::token::Token;

use crate::append::{fields, pairs};
use crate::consumer::Consumer;
use crate::context::Context;
use crate::{errors, outcomes};

/// An outcome as Python says it: its number, and the delay of a retry or the reason and the error of a dead letter.
type Said<'a> = (u8, Option<f64>, Option<&'a str>, Option<&'a [u8]>);

/// Give one delivery its outcome. False: it is not ours any more.
pub(crate) fn settle(this: &Consumer, py: Python<'_>, ctx: &Context, said: Said<'_>) -> PyResult<bool> {
    let (outcome, delay, reason, error) = said;
    let (token, partition) = (&ctx.token, ctx.partition);
    let letter = || outcomes::letter(this.dead_letter.as_ref(), reason.unwrap_or_default(), error);
    match outcomes::outcome(outcome, delay, letter)? {
        // At a stop nothing is kept: who goes on with the key is another consumer.
        Outcome::Retry(delay) if this.strict && partition != KEYLESS && !this.subscription.stop.is_cancelled() => {
            let after = delay.unwrap_or_else(|| growing(token.delivery_count()));
            // Under the lock, so that the head does not come back before its partition is kept for it.
            let mut lanes = this.lanes.lock();
            let settled = this.subscription.keep(token, after);
            if settled == Settled::Taken {
                lanes.keep(partition, token.id());
            }
            drop(lanes);
            outcomes::answered(py, token, settled)
        }
        outcome => give(this, py, token, outcome),
    }
}

/// Ack one delivery and publish its reply in the same step. False: it is not ours any more.
pub(crate) fn reply(
    this: &Consumer,
    py: Python<'_>,
    ctx: &Context,
    stream: &str,
    payload: &[u8],
    headers: &Bound<'_, PySequence>,
    trim: Option<Trim>,
) -> PyResult<bool> {
    let token = &ctx.token;
    let mut headers = pairs(headers)?;
    if !headers.iter().any(|(name, _)| name == header::CORRELATION_ID) {
        headers.push((Bytes::from_static(header::CORRELATION_ID), token.correlation_id().into()));
    }
    let reply = Append { stream: stream.into(), fields: fields(payload, &headers, None), trim };
    check_size(&reply, this.max_value).map_err(|error| errors::to_py(py, &error))?;
    give(this, py, token, Outcome::Reply(Arc::new(reply)))
}

fn give(this: &Consumer, py: Python<'_>, token: &Token, outcome: Outcome) -> PyResult<bool> {
    outcomes::answered(py, token, this.subscription.settle(token, outcome))
}
