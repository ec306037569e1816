# First contact. XTRAIN_CUDA_SYNC=1: an error names its kernel, and a difference the kernels of its case.
export XTRAIN_CUDA_SYNC=1
[ -n "$dry" ] || step 20 "nvidia-smi" nvidia-smi
step 20 "xtrain doctor" ./xtrain doctor && note "$(cat "$last")"
operation=gates::contact::an_operation_has_the_bits_of_the_reference
if [ ${#operations[@]} -eq 0 ]; then
    for test in a_product_equals_the_model a_step_of_zeros wgmma_has_the_bits; do
        # the first one loads the kernel image: the driver compiles PTX
        XTRAIN_CUDA_WGMMA=0 step 150 "tensor cores: $test" ./test-tensor "gates::tensor_core::$test" --nocapture
    done
    # if these kernels fail, the operations run without them
    step 60 "products by wgmma" ./test-tensor gpu::wgmma_probe::tests::this_machine --nocapture ||
        export XTRAIN_CUDA_WGMMA=0
    mapfile -t operations < <(XTRAIN_TEST_OPERATION=list ./test-tensor --exact $operation --nocapture |
        sed -n 's/^operation //p')
fi
: > "$out/failed"
for name in "${operations[@]}"; do
    XTRAIN_TEST_OPERATION=$name step 30 "operation $name" ./test-tensor --exact $operation --nocapture
    case $? in 0 | 75) ;; *) echo "$name" >> "$out/failed" ;; esac
done
