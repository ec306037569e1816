# Decoding, 128 new tokens after prompts of 128, with the vocabularies that gpu.py gives to its peers.
bench() { # dtype preset vocabulary batch [flags]
    local dtype=$1 preset=$2 vocab=$3 batch=$4 rows=$4 sizes=(--set "model.preset=$2" --set "model.vocab=$3")
    shift 4
    if [ -n "$dry" ]; then
        sizes=(--set model.preset=tiny-1m --set model.n_layers=1 --set model.vocab=64 --prompt-len 4 --max-new 5)
        rows=$((batch > 1 ? 3 : 1))
    fi
    step 40 "$preset, batch $batch, $dtype${*:+, $*}" ./xtrain bench decode --device $device --dtype "$dtype" \
        --batch "$rows" --repeats "${dry:-3}" "${sizes[@]}" "$@" && note "$(tail -40 "$last")"
}
for dtype in bf16 f32; do
    for preset in "base-125m 32768" "small-10m 4096" "qwen3-0.6b 151936"; do
        read -r name vocab <<< "$preset"
        for batch in 1 32 256; do bench $dtype "$name" "$vocab" $batch; done
        [ $dtype = f32 ] || bench $dtype "$name" "$vocab" 32 --temperature 1 --top-p 0.9
    done
done
bench bf16 base-125m 32768 256 --one-prompt
# the lossy caches next to the paged one
bench bf16 base-125m 32768 32 --kv int8
bench bf16 base-125m 32768 32 --kv sinks --kv-sinks 4 --kv-window "${dry:-124}"
# the same without dependent launch
export XTRAIN_CUDA_DEPENDENT_LAUNCH=0
bench bf16 base-125m 32768 1
bench bf16 base-125m 32768 32
