//! The load of each side: content, patterns, churn, programs, a server. The same code for all
//! sides. Never knows which side it runs on.

pub(crate) mod churn;
pub(crate) mod data;
pub(crate) mod pattern;
pub(crate) mod programs;
pub(crate) mod redis_client;
pub(crate) mod tools;
