# Nsight Compute over the last kernels of a step of each kind: time, bytes from and to memory, achieved bandwidth.
# XTRAIN_CUDA_GRAPHS=0: each kernel is a launch of its own. The caches are not flushed between kernels.
export XTRAIN_CUDA_GRAPHS=0
profile() { # title skip count command...: profiles `count` launches after `skip`
    local title=$1 skip=$2 count=$3
    shift 3
    step 150 "$title" "${ncu[@]}" --clock-control none --cache-control none --csv --page raw \
        --launch-skip "$skip" --launch-count "$count" --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum \
        --print-units base "$@" || return
    if rows=$(timeout 20 python3 gpu-report/bandwidth.py "$last" 2>&1); then
        note "$rows"
    else
        failed=1
        write_row "$title: bandwidth" "FAILED: $(tail -1 <<< "$rows")" 0
    fi
}
model=(--set model.preset=base-125m --set model.vocab=32768) lengths=(--prompt-len 128 --max-new 40)
step_of_train=(--set train.batch=8 --set train.micro_batch=8 --set train.context=1024)
if [ -n "$dry" ]; then
    model=(--set model.preset=tiny-1m --set model.n_layers=1 --set model.vocab=64) lengths=(--prompt-len 4 --max-new 5)
    step_of_train=(--set train.batch=1 --set train.context=8 --set train.micro_batch=1)
fi
for batch in 1 32; do
    profile "decode, batch $batch" 2000 130 ./xtrain bench decode --device $device --dtype bf16 --batch $batch \
        --repeats 1 "${lengths[@]}" "${model[@]}"
done
# a step has 565 launches
profile "train" 1700 565 ./xtrain bench train --device $device --dtype bf16 --steps 2 "${step_of_train[@]}" "${model[@]}"
