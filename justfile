# Conveniences; nothing needs them.

# The tests of the README.
test:
    cargo test --workspace --features faults

# The longer suite: CONTRIBUTING.md has its numbers.
soak:
    XTRAIN_SOAK=1 cargo test --workspace --features faults -- --nocapture

# Renews the checked-in PTX (needs nvcc: export CUDA_HOME=$(bash scripts/nvcc.sh)).
ptx:
    bash scripts/ptx.sh

# Registers, spills and shared memory of every kernel (needs nvcc).
kernels:
    bash scripts/kernels.sh

# What CI runs.
ci:
    bash .ci/run

# Licences, advisories and duplicate crates.
deny:
    cargo deny check
