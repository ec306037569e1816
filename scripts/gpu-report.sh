#!/usr/bin/env bash
# Runs the contents of gpu-pack.sh on a GPU machine and writes gpu-<device>-<date>.md to the same directory (it
# belongs in docs/bench/): the gates, then speed compared with PyTorch and cuBLASLt if python3 has torch, then
# tables, the step times of GRPO, then large batches compared with PyTorch. Finishes within 10 minutes. The report is
# valid after every section, so an interrupted run keeps its results. Nothing is skipped silently: the script fails
# without a GPU, and a section fails if it has no time left or one of its filters selects no test.
# usage: bash gpu-report.sh [--grpo] [--dry-run]
#   --grpo: only the step times of GRPO, also of a model of 0.6 B parameters
#   --dry-run: runs every command line on the emulator, with tiny sizes
set -uo pipefail
cd "$(dirname "$0")" || exit 1
budget=${XTRAIN_REPORT_SECONDS:-580}
export XTRAIN_TEST_DATA=$PWD/data XTRAIN_BIN=$PWD/xtrain
arguments="$*" suffix='' presets=(base-125m) grpo_seconds=45
if [ "${1:-}" = --grpo ]; then
    suffix=-grpo presets+=(qwen3-0.6b) grpo_seconds=140
    shift
fi
if [ "${1:-}" = --dry-run ]; then
    export XTRAIN_REQUIRE_EMU=1
    name=dry-run device=emulated
    tiny=(--set model.preset=tiny-1m --set model.n_layers=1)
    short=(--repeats 1 --prompt-len 4 --max-new 5)
    brief=(--set train.batch=1 --set train.context=8 --set train.micro_batch=1)
    peers=(--quick --device cpu)
    groups=("2 2" "2 3") length=4
elif [ $# -gt 0 ]; then
    echo "usage: bash gpu-report.sh [--grpo] [--dry-run]" >&2
    exit 2
else
    export XTRAIN_REQUIRE_GPU=1
    name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
    [ -n "$name" ] || { echo "error: nvidia-smi finds no GPU" >&2; exit 69; }
    device=cuda
    tiny=() short=() brief=() peers=()
    groups=("6 6" "8 64") length=64
fi
report="gpu-$(echo "$name" | tr ' /' '--' | tr '[:upper:]' '[:lower:]')-$(date +%F)$suffix.md"
output=$(mktemp)
runs=$(mktemp -d)
trap 'rm -rf "$output" "$runs"' EXIT
failed=0
{
    echo "# $name, $(date +%F)"
    echo
    commit=$(tr '\n' ' ' < commit) || failed=1
    [ -n "$commit" ] || failed=1
    echo "Commit ${commit:-unknown}. Written by scripts/gpu-report.sh${arguments:+ $arguments}."
    echo
    echo '```'
    [ "$device" = emulated ] ||
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv || failed=1
    ./xtrain doctor || failed=1
    echo '```'
} > "$report" || failed=1
# write_section title verdict [text]: appends a section to the report
write_section() {
    printf '\n## %s\n\n%s\n' "$1" "$2" >> "$report"
    [ -z "${3:-}" ] || printf '\n```\n%s\n```\n' "$3" >> "$report"
    printf '%-44s %s\n' "$1" "$2"
}
# seconds reserved for the tables at the end
reserved=$((budget * 120 / 580))
# executed filter: the number of tests in the output whose names contain the filter, without ignored ones
executed() {
    awk -v filter="$1" '/^test [^ ]+ .*\.\.\./ && !/\.\.\. ignored/ && index($2, filter) { n++ }
        END { print n + 0 }' "$output"
}
# section seconds "title" command...: runs a command with a time limit (seconds of a 580 s budget, at most the
# remaining time), and appends its last lines and whether it passed
section() {
    local limit=$(($1 * budget / 580)) title=$2 status start=$SECONDS left=$((budget - reserved - SECONDS)) verdict
    shift 2
    [ "$left" -gt "$limit" ] || limit=$left
    if [ "$left" -lt 5 ]; then
        failed=1
        write_section "$title" "NOT RUN: no time left"
        return
    fi
    timeout -k 5 "$limit" "$@" > "$output" 2>&1
    status=$?
    verdict="FAILED ($status)"
    [ "$status" -ne 0 ] || verdict=passed
    # 124 and 137 mean the time limit only if the time has passed; otherwise the program itself failed
    case $status in
        124 | 137) [ $((SECONDS - start)) -lt "$limit" ] || verdict="FAILED: exceeded $limit s" ;;
    esac
    # a test program exits with 0 also if a filter selects no test; the filters precede the options
    case $1 in
        ./test-*)
            local filter idle=
            for filter in "${@:2}"; do
                [[ $filter != --* ]] || break
                [ "$(executed "$filter")" -gt 0 ] || idle+=" $filter"
            done
            [ "$status" -ne 0 ] || [ -z "$idle" ] || { verdict="FAILED: no test ran for$idle" status=1; }
            verdict="$verdict, $(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$output") tests passed"
            ;;
    esac
    [ "$status" -eq 0 ] || failed=1
    write_section "$title" "\`$*\`: $verdict in $((SECONDS - start)) s" "$(tail -60 "$output")"
}
if [ -z "$suffix" ]; then
    section 150 "Kernels against the CPU, bitwise" ./test-tensor gpu tensor_core --nocapture --test-threads 1
    section 90 "Whole models against the CPU, bitwise" ./test-gates gpu:: gpu_windows:: multi_step:: \
        golden::the_gpu --nocapture --test-threads 1
    section 60 "GRPO against the CPU, bitwise" ./test-gates grpo::devices:: --nocapture --test-threads 1
    if python3 -c 'import torch' 2> /dev/null; then
        section 100 "Decoding compared with PyTorch, batch 1" python3 gpu.py decode --sizes 125m,0.6b --batches 1 \
            "${peers[@]}"
        section 80 "Training compared with PyTorch" python3 gpu.py train "${peers[@]}"
        section 40 "Matrix products compared with cuBLASLt" python3 gpu.py linear "${peers[@]}"
    else
        write_section "Speed compared with PyTorch" "NOT RUN: python3 has no torch"
    fi
    reserved=0 # the tables
    for dtype in bf16 f32; do
        for preset in base-125m small-10m qwen3-0.6b; do
            size=(--set "model.preset=$preset" "${tiny[@]}")
            for batch in 1 256; do
                [ "$device" = cuda ] || batch=$((batch > 1 ? 3 : 1))
                section 20 "Decoding, $preset, batch $batch, $dtype" ./xtrain bench decode --device $device \
                    --dtype $dtype --batch "$batch" "${size[@]}" "${short[@]}"
            done
            [ "$preset" = qwen3-0.6b ] ||
                section 20 "Training, $preset, $dtype" ./xtrain bench train --device $device --dtype $dtype --steps 10 \
                    --set train.batch=8 --set train.micro_batch=8 --set train.context=1024 "${size[@]}" "${brief[@]}"
        done
    done
fi
reserved=0
# GRPO from a base model of one step: the lines of timings.jsonl, one per step. The rewards differ within a group;
# otherwise there would be no update to time.
cat > "$runs/reward.sh" << 'END'
while IFS= read -r line; do
    id=${line#*:} id=${id%%,*} rest=${line#*,}
    echo "{\"id\":$id,\"reward\":$((${#rest} % 5))}"
done
END
for preset in "${presets[@]}"; do
    for shape in "${groups[@]}"; do
        read -r prompts completions <<< "$shape"
        run=$runs/grpo-$prompts-$completions
        config=(--set "model.preset=$preset" "${tiny[@]}")
        for key in train.steps=1 train.batch=1 train.context=128 train.eval_every=0 train.sample_every=0 \
            data.val_fraction=0 grpo.steps=3 "grpo.prompts_per_step=$prompts" "grpo.num_generations=$completions" \
            "grpo.max_completion_length=$length" grpo.eval_every=0 grpo.verify_every=0 grpo.show_every=0 \
            grpo.save_every=3; do
            config+=(--set "$key")
        done
        section "$grpo_seconds" "GRPO, $preset, $prompts x $completions completions of up to $length tokens, bf16" \
            bash -c './xtrain grpo --task sums --run "$0" "$@" && cat "$0/timings.jsonl"' "$run" --device $device \
            --dtype bf16 --reward "sh $runs/reward.sh" "${config[@]}"
        rm -rf "$run"
    done
done
if [ -z "$suffix" ] && python3 -c 'import torch' 2> /dev/null; then
    section 110 "Decoding compared with PyTorch, batch 256" python3 gpu.py decode --batches 256 "${peers[@]}"
fi
echo "$report"
exit $failed
