//! Faults on demand: an operation that fails once, as one does whose connection is cut or that a server refuses.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A read of a subscription.
    Read,
    /// Carrying outcomes out: nothing of it happens.
    Settle,
    /// Adding what was published: nothing of it happens.
    Append,
}

/// The faults to come. Clients share one list: whichever gets to such an operation first fails.
#[derive(Debug, Default)]
pub struct Faults(Mutex<VecDeque<(Operation, Error)>>);

impl Faults {
    /// Let the next such operation fail like this, after those that were asked for before.
    pub fn fail_next(&self, operation: Operation, error: Error) {
        self.0.lock().push_back((operation, error));
    }

    /// Whether this operation may go on.
    pub(super) fn check(&self, operation: Operation) -> Result<()> {
        let mut faults = self.0.lock();
        let at = faults.iter().position(|(fails, _)| *fails == operation);
        at.and_then(|at| faults.remove(at)).map_or(Ok(()), |(_, error)| Err(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_comes_once_and_to_its_own_operation() {
        let faults = Faults::default();
        faults.fail_next(Operation::Read, Error::Lost("cut".into()));
        faults.fail_next(Operation::Settle, Error::Server("no".into()));
        faults.fail_next(Operation::Read, Error::Lost("again".into()));
        assert_eq!(faults.check(Operation::Append), Ok(()));
        assert_eq!(faults.check(Operation::Settle), Err(Error::Server("no".into())));
        assert_eq!(faults.check(Operation::Read), Err(Error::Lost("cut".into())));
        assert_eq!(faults.check(Operation::Read), Err(Error::Lost("again".into())));
        assert_eq!(faults.check(Operation::Read), Ok(()));
    }
}
