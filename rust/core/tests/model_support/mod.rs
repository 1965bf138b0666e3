//! A real Redis for tests of the model, a plain connection to it, and commands that both take.

pub mod choice;
pub mod replies;
pub mod resp;
pub mod server;
pub mod steps;
