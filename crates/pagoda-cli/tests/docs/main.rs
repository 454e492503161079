//! The documentation: its pages and their commands, and the tables that are made from the sources
//! and from runs.

mod book;
mod figures;
mod stats;
