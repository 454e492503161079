//! What is run on each side: content, patterns, churn, programs, a server.

pub(crate) mod churn;
pub(crate) mod data;
pub(crate) mod pattern;
pub(crate) mod programs;
pub(crate) mod redis_client;
pub(crate) mod tools;
