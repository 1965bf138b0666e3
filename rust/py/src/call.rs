//! Calls into Python without an argument tuple. PyO3 makes one under abi3 for 3.11, where vectorcall is not in the
//! limited API; the variadic calls are, and use it inside. They save 0.1 us per delivery, see `benches/`.
#![expect(unsafe_code, reason = "variadic C calls; each states why its arguments are sound")]

use pyo3::ffi;
use pyo3::prelude::*;

const END: *mut ffi::PyObject = std::ptr::null_mut();

/// `callable(argument)`.
#[inline]
pub(crate) fn one<'py>(callable: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: attached; both objects are alive for the call; the list of arguments ends with null.
    // The result is a new reference, or null with an exception set.
    unsafe {
        let result = ffi::PyObject_CallFunctionObjArgs(callable.as_ptr(), argument.as_ptr(), END);
        Bound::from_owned_ptr_or_err(callable.py(), result)
    }
}

/// `callable(first, second)`.
#[inline]
pub(crate) fn two<'py>(
    callable: &Bound<'py, PyAny>,
    first: &Bound<'py, PyAny>,
    second: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as in `one`.
    unsafe {
        let result = ffi::PyObject_CallFunctionObjArgs(callable.as_ptr(), first.as_ptr(), second.as_ptr(), END);
        Bound::from_owned_ptr_or_err(callable.py(), result)
    }
}

/// `object.name(first, second)`, without the bound method in between.
#[inline]
pub(crate) fn method<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    first: &Bound<'py, PyAny>,
    second: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as in `one`; `name` is a string.
    unsafe {
        let result =
            ffi::PyObject_CallMethodObjArgs(object.as_ptr(), name.as_ptr(), first.as_ptr(), second.as_ptr(), END);
        Bound::from_owned_ptr_or_err(object.py(), result)
    }
}

/// One step of a coroutine. PyO3 has no form of `PyIter_Send`, which spares the `StopIteration` of `send`.
#[inline]
pub(crate) fn send<'py>(coroutine: &Bound<'py, PyAny>) -> PyResult<(bool, Bound<'py, PyAny>)> {
    let mut result = END;
    // SAFETY: attached; `coroutine` is alive; `result` is set to a new reference, or to null with an exception set.
    unsafe {
        let state = ffi::PyIter_Send(coroutine.as_ptr(), ffi::Py_None(), &raw mut result);
        let yielded = matches!(state, ffi::PySendResult::PYGEN_NEXT);
        Ok((yielded, Bound::from_owned_ptr_or_err(coroutine.py(), result)?))
    }
}
