//! The model of an engine.
use std::ops::Deref;
use std::sync::Arc;

use xtrain_model::Model;

/// The model of an [`Engine`](crate::Engine), borrowed or shared: a `&Model` or an `Arc<Model>`.
///
/// With a `&Model`, the engine lives as long as the borrow. With an `Arc<Model>` it is an `Engine<'static>`, which a
/// struct or a thread can own, and several engines can share one model. In both cases no weight can change while the
/// engine exists.
#[derive(Debug, Clone)]
pub struct ModelHandle<'m>(Handle<'m>);

#[derive(Debug, Clone)]
enum Handle<'m> {
    Borrowed(&'m Model),
    Shared(Arc<Model>),
}

impl Deref for ModelHandle<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        match &self.0 {
            Handle::Borrowed(model) => model,
            Handle::Shared(model) => model,
        }
    }
}

impl From<Arc<Model>> for ModelHandle<'_> {
    fn from(model: Arc<Model>) -> Self {
        ModelHandle(Handle::Shared(model))
    }
}

/// References that borrow the model.
macro_rules! borrowed {
    ($($from:ty),+) => {$(
        impl<'m> From<$from> for ModelHandle<'m> {
            fn from(model: $from) -> ModelHandle<'m> {
                ModelHandle(Handle::Borrowed(model))
            }
        }
    )+};
}

borrowed!(&'m Model, &'m mut Model, &'m Arc<Model>, &'m Box<Model>);
