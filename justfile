# Conveniences; nothing needs them.

# The tests of the README.
test:
    cargo test --workspace --features faults

# The longer suite: CONTRIBUTING.md has its numbers.
soak:
    XTRAIN_SOAK=1 cargo test --workspace --features faults -- --nocapture

# What CI runs.
ci:
    bash .ci/run

# Licences, advisories and duplicate crates.
deny:
    cargo deny check
