# compute-sanitizer on the operations that the stage contact found, or on those that order blocks and threads most.
export XTRAIN_CUDA_SYNC=1
if [ ${#operations[@]} -eq 0 ]; then
    [ ! -s "$out/failed" ] || mapfile -t operations < "$out/failed"
    [ ${#operations[@]} -gt 0 ] || operations=(decode_attention linear_add_norm sample_rows embedding_backward)
fi
for name in "${operations[@]}"; do
    for tool in memcheck racecheck synccheck; do
        XTRAIN_TEST_OPERATION=$name step 120 "$tool, $name" "${sanitizer[@]}" --tool "$tool" --error-exitcode 9 \
            --print-limit 20 ./test-tensor --exact gates::contact::an_operation_has_the_bits_of_the_reference --nocapture
    done
done
