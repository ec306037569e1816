//! The model of an engine.
use std::ops::Deref;
use std::sync::Arc;

use xtrain_model::Model;

/// The model of an [`Engine`](crate::Engine), borrowed or shared. `&Model` and `Arc<Model>` convert into it.
///
/// With `&Model`, the engine lives as long as the borrow. With `Arc<Model>` it is an `Engine<'static>`, which a struct
/// or a thread can own, and several engines can share one model. In both cases no weight can change while the engine
/// exists.
#[derive(Debug, Clone)]
pub enum ModelHandle<'m> {
    /// A borrowed model.
    Borrowed(&'m Model),
    /// A model with several owners.
    Shared(Arc<Model>),
}

impl Deref for ModelHandle<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        match self {
            ModelHandle::Borrowed(model) => model,
            ModelHandle::Shared(model) => model,
        }
    }
}

impl<'m> From<&'m Model> for ModelHandle<'m> {
    fn from(model: &'m Model) -> ModelHandle<'m> {
        ModelHandle::Borrowed(model)
    }
}

impl From<Arc<Model>> for ModelHandle<'_> {
    fn from(model: Arc<Model>) -> Self {
        ModelHandle::Shared(model)
    }
}
