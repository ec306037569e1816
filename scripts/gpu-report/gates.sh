# Every gate that runs on a GPU, one process per test: first operations, then whole models. A filter that selects no test
# fails. With names of tests: only these.
tests() { # program filter...: the names of the tests, and the filters that select none
    local program=$1 filter found
    shift
    for filter in "$@"; do
        found=$(timeout 20 "$program" --list "$filter" 2> /dev/null | sed -n 's/: test$//p')
        printf '%s\n' "${found:-$filter}"
    done | sort -u
}
if [ ${#operations[@]} -gt 0 ]; then
    for test in "${operations[@]}"; do
        step 60 "$test" ./test-gates --exact "$test" --nocapture
    done
    return
fi
for test in $(tests ./test-tensor gates::gpu::tests::every_operation gates::tensor_core ops::device_sampler ops::packing \
    gates::filters); do
    step 120 "$test" ./test-tensor --exact "$test" --nocapture
done
for test in $(tests ./test-gates gpu:: gpu_windows:: multi_step:: golden::the_gpu golden_policy:: decode_kv:: \
    kept_sets:: branches:: policy_end_to_end:: open_for_inference:: grpo::devices:: \
    launch_log::the_recorder stop_text::a_gpu commands_verify::verify_finds_a_fault_of_steps_ahead \
    int8::a_gpu sinks::a_gpu held_rows::rows_leave_a_gpu constraints::constrained_completions_do_not_change_a_bit_on_a_gpu \
    speculation::drafts_do_not_change_a_bit_on_a_gpu); do
    step 60 "$test" ./test-gates --exact "$test" --nocapture
done
