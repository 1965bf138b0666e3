//! Entries to add, and what their streams are kept within, made of what Python hands in.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyTuple};
use ruststream_core::append::Trim;
use ruststream_core::header;
use ruststream_core::store::Bound as Within;

use crate::client::seconds;
use crate::errors;

/// Headers as fields.
pub(crate) fn pairs(headers: &Bound<'_, PySequence>) -> PyResult<Vec<(Bytes, Bytes)>> {
    let mut pairs = Vec::with_capacity(headers.len()?);
    for header in headers.try_iter()? {
        let header = header?;
        let header = header.cast::<PyTuple>()?;
        let (name, value) = (header.get_item(0)?, header.get_item(1)?);
        let name = [header::PREFIX, name.cast::<PyBytes>()?.as_bytes()].concat();
        pairs.push((name.into(), Bytes::copy_from_slice(value.cast::<PyBytes>()?.as_bytes())));
    }
    Ok(pairs)
}

/// The fields of an entry in our wire form.
pub(crate) fn fields(payload: &[u8], headers: &[(Bytes, Bytes)], key: Option<&[u8]>) -> Vec<(Bytes, Bytes)> {
    let mut fields = Vec::with_capacity(headers.len() + 2);
    fields.push((Bytes::from_static(header::PAYLOAD), Bytes::copy_from_slice(payload)));
    fields.extend_from_slice(headers);
    if let Some(key) = key {
        fields.push((Bytes::from_static(header::KEY), Bytes::copy_from_slice(key)));
    }
    fields
}

/// How the stream is trimmed on the way.
pub(crate) fn trim(maxlen: Option<u64>, minid: Option<String>, approximate: bool) -> Option<Trim> {
    let (strategy, threshold) = match (maxlen, minid) {
        (Some(length), _) => ("MAXLEN", length.to_string()),
        (None, Some(id)) => ("MINID", id),
        (None, None) => return None,
    };
    Some(Trim { strategy, threshold, approximate })
}

/// What a stream is kept within, as Python says it: seconds, or entries.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number that was checked")]
pub(crate) fn bound(py: Python<'_>, policy: &str, figure: f64) -> PyResult<Within> {
    match policy {
        "acked" => Ok(Within::Acked),
        "max_length" => Ok(Within::Length(figure as u64)),
        "max_age" => Ok(Within::Age(seconds(figure))),
        other => Err(errors::config(py, &format!("there is no way to trim {other:?}"))),
    }
}
