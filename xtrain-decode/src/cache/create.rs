//! Creation of a cache from its kind.
use xtrain_model::{Model, Result};

use super::contiguous::Contiguous;
use super::growing::Growing;
use super::interface::Cache;
use super::kind::{KvKind, Room};
use super::paged::Paged;
use super::shape::CacheShape;

impl KvKind {
    /// An empty cache of this kind for `model`. `None` for [`KvKind::Off`]. A page size of 0 counts as 1.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn cache(self, model: &Model, room: Room) -> Result<Option<Box<dyn Cache>>> {
        let shape = CacheShape::of(model);
        Ok(match self {
            KvKind::Off => None,
            KvKind::Growing => Some(Box::new(Growing::new(shape, room)?)),
            KvKind::Contiguous => Some(Box::new(Contiguous::new(shape, room)?)),
            KvKind::Paged { page } => Some(Box::new(Paged::new(shape, room, page.max(1))?)),
        })
    }
}
