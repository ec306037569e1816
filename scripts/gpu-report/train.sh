# Training steps of 8 x 1024 tokens; then GRPO from a base model of one step: its timings.jsonl, one line per step.
tiny=() short=()
groups=("6 6" "8 64") length=64
if [ -n "$dry" ]; then
    tiny=(--set model.preset=tiny-1m --set model.n_layers=1 --set model.vocab=64)
    short=(--set train.batch=1 --set train.context=8 --set train.micro_batch=1)
    groups=("2 2") length=4
fi
for dtype in bf16 f32; do
    for preset in "base-125m 32768" "small-10m 4096"; do
        read -r name vocab <<< "$preset"
        step 60 "$name, $dtype" ./xtrain bench train --device $device --dtype $dtype --steps "${dry:-10}" \
            --set "model.preset=$name" --set "model.vocab=$vocab" --set train.batch=8 --set train.micro_batch=8 \
            --set train.context=1024 "${tiny[@]}" "${short[@]}" && note "$(tail -40 "$last")"
    done
done
runs=$(mktemp -d)
# the rewards differ within a group; otherwise there would be no update to time
cat > "$runs/reward.sh" << 'END'
while IFS= read -r line; do
    id=${line#*:} id=${id%%,*} rest=${line#*,}
    echo "{\"id\":$id,\"reward\":$((${#rest} % 5))}"
done
END
for preset in base-125m qwen3-0.6b; do
    for shape in "${groups[@]}"; do
        read -r prompts completions <<< "$shape"
        config=(--set "model.preset=$preset")
        [ -z "$dry" ] || config=(--set model.preset=tiny-1m --set model.n_layers=1)
        for key in train.steps=1 train.batch=1 train.context=128 train.eval_every=0 train.sample_every=0 \
            data.val_fraction=0 grpo.steps=3 "grpo.prompts_per_step=$prompts" "grpo.num_generations=$completions" \
            "grpo.max_completion_length=$length" grpo.eval_every=0 grpo.verify_every=0 grpo.show_every=0 \
            grpo.save_every=3; do
            config+=(--set "$key")
        done
        step 100 "GRPO, $preset, $prompts x $completions completions of up to $length tokens, bf16" \
            bash -c './xtrain grpo --task sums --run "$0" "$@" && cat "$0/timings.jsonl"' "$runs/run" --device $device \
            --dtype bf16 --reward "sh $runs/reward.sh" "${config[@]}" && note "$(tail -4 "$last")"
        rm -rf "$runs/run"
    done
done
rm -rf "$runs"
