//! Train tiny transformers and roll them out with the very same arithmetic.
pub use xtrain_decode as decode;
pub use xtrain_model as model;
pub use xtrain_tensor as tensor;
