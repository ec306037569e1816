# Shortcuts; nothing depends on them.

# The tests of the README.
test:
    cargo test --workspace --features faults

# The longer suite: its numbers are in CONTRIBUTING.md.
soak:
    XTRAIN_SOAK=1 cargo test --workspace --features faults -- --nocapture

# Regenerates the checked-in PTX (needs nvcc: export CUDA_HOME=$(bash scripts/nvcc.sh)).
ptx:
    bash scripts/ptx.sh

# Prints registers, shared memory, blocks per SM and loads in flight of every kernel (needs nvcc).
kernels:
    bash scripts/kernels.sh

# Counts the branches of the kernels that the gates take on the emulator.
coverage:
    python3 scripts/kernel_coverage.py

# Builds the book into target/book. Broken links and anchors are errors.
book:
    python3 scripts/bench_table.py --check
    python3 scripts/pictures.py --check
    python3 scripts/check_links.py
    test -x target/book-venv/bin/sphinx-build || python3 -m venv target/book-venv
    target/book-venv/bin/pip install -q -r docs/requirements.txt
    target/book-venv/bin/sphinx-build -q -n -W --keep-going docs target/book

# Runs what CI runs.
ci:
    bash .ci/run

# Checks licences, advisories and duplicate crates.
deny:
    cargo deny check
