#!/usr/bin/env bash
# usage: bash scripts/cut-link.sh PROGRAM
# Trains on two processes in two network namespaces, connected by a virtual link, over TCP. Compares the run with that
# of one process, then cuts the link during another run: both processes have to end within 60 s with an error. PROGRAM:
# xtrain with the feature mpi. Needs root, iproute2 and Open MPI.
set -euo pipefail
program=$(realpath "$1")
dir=$(mktemp -d)
log=$dir/errors
a=xtrain-a-$$ b=xtrain-b-$$
cleanup() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT

ip netns add "$a"
ip netns add "$b"
ip -n "$a" link add eth0 type veth peer name eth0 netns "$b"
for end in "$a 10.77.0.1" "$b 10.77.0.2"; do
    read -r name address <<<"$end"
    ip -n "$name" address add "$address/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
done

# Each namespace has a host name, by which Open MPI tells machines apart.
cat >"$dir/agent" <<AGENT
#!/usr/bin/env bash
shift
exec ip netns exec $b unshare --uts bash -c 'echo machine-b >/proc/sys/kernel/hostname; exec bash -c "\$*"' _ "\$@"
AGENT
chmod +x "$dir/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
# A connection without an answer is lost after 10 s + 3 times 5 s.
export OMPI_MCA_oob_tcp_keepalive_time=10 OMPI_MCA_oob_tcp_keepalive_intvl=5 OMPI_MCA_oob_tcp_keepalive_probes=3
launch=(ip netns exec "$a" unshare --uts bash -c 'echo machine-a >/proc/sys/kernel/hostname; exec "$@"' _
    mpirun --host 10.77.0.1:1,10.77.0.2:1 --mca plm_rsh_agent "$dir/agent" --mca btl tcp,self
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 --wdir "$dir" "$program")
sizes=(--threads 1 --data text.txt)
for key in model.preset=tiny-1m train.shards=2 train.batch=4 train.context=32 train.warmup=2 train.decay=1 \
    train.sample_every=0 train.eval_every=0; do
    sizes+=(--set "$key")
done

cd "$dir"
seq 1 20000 >text.txt
"$program" train "${sizes[@]}" --steps 5 --run one 2>"$log" || { cat "$log"; exit 1; }
"${launch[@]}" train "${sizes[@]}" --steps 5 --run two 2>"$log" || { cat "$log"; exit 1; }
for file in metrics.jsonl checkpoints/step_000005/model.safetensors \
    checkpoints/step_000005/trainer/optimizer.safetensors; do
    cmp "one/$file" "two/$file"
done
echo "two namespaces: the files of one process"

"${launch[@]}" train "${sizes[@]}" --steps 1000000 --set train.save_every=10 --run cut 2>"$log" &
run=$!
until [ -d cut/checkpoints/step_000010 ]; do
    kill -0 $run || { cat "$log"; exit 1; }
    sleep 0.1
done
ip -n "$b" link set eth0 down
cut=$(date +%s)
status=0
wait $run || status=$?
seconds=$(($(date +%s) - cut))
echo "link cut: mpirun ended after $seconds s with exit code $status:"
cat "$log"
[ $status -ne 0 ] && [ $seconds -le 60 ]
grep -q "lost communication" "$log"
until [ -z "$(ip netns pids "$a")$(ip netns pids "$b")" ]; do
    [ $(($(date +%s) - cut)) -le 60 ] || { echo "processes remain: $(ip netns pids "$b")"; exit 1; }
    sleep 0.5
done
echo "no process remains after $(($(date +%s) - cut)) s"
last=$(ls cut/checkpoints | grep -v tmp | sort | tail -1)
steps=$((10#${last#step_} + 5))
"$program" train --resume cut --set train.steps=$steps --threads 1 2>"$log" || { cat "$log"; exit 1; }
echo "resumed at $last"
