//! Self-contained HTML pages: no file of a page is loaded from elsewhere.
mod figure;
mod page;

pub(crate) use figure::{Curve, Figure};
pub(crate) use page::{Bar, Page};
