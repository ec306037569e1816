# Several GPUs, one for each process, connected by NCCL: steps and GRPO with the bytes of one. On a machine with fewer GPUs
# the rows say that nothing was run.
count=4
[ -n "$dry" ] || count=$(timeout 20 nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
for size in two four; do
    number=$([ $size = two ] && echo 2 || echo 4)
    for test in "${size}_connected_gpus_have_the_bits_of_the_definition" \
        "two_steps_of_grpo_on_${size}_connected_gpus_have_the_files_of_one_cpu"; do
        if [ "$count" -lt "$number" ]; then
            write_row "$test" "not run: this machine has $count of $number GPUs" 0
        else
            step 120 "$test" ./test-gates --exact "gpu_peers::$test" --nocapture
        fi
    done
done
