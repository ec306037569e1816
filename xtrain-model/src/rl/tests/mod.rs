//! Edge cases. The comparison with TRL is tests/gates/policy.rs.
mod advantage;
mod every_variant;
mod policy_loss;
