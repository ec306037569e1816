"""Compares `xtrain grpo` with the GRPOTrainer of TRL on the CPU, in one run, alternating.

    python tests/peers/grpo.py [--seeds 0,1,2] [--steps N] [--threads N] [--xtrain PROGRAM] [--json FILE]

The task is the sums of configs/grpo.toml: 435,072 parameters, 16 prompts x 16 completions of at most 8 tokens per
step, reward 1 for the exact sum and 0 otherwise, a learning rate that falls linearly to 0, f32. Both programs start
from the same weights: xtrain trains the base model and exports it as a Hugging Face directory. They read the same
prompts in the same order, and have the same loss (DAPO without KL term), optimizer and number of threads. TRL's
options are those of xtrain's resolved configuration (`trl_options`). `--steps N` shortens the schedule, too.

The two programs alternate: each runs `SLICE` steps while the other is stopped, so that changes of the machine's speed
affect both. Both write a line after each step (xtrain: timings.jsonl; TRL: a callback). A line of the table shows the
median and the minimum over the steps of all seeds, without the first `WARM` of each:

* step, wall: from line to line, without the time during which the program was stopped. Includes everything that the
  programs do by default: xtrain saves all completions and compares the log-probabilities of the sampler and the
  trainer. Evaluation and checkpoints are turned off in both. Lines are read every 5 ms;
* step, CPU: user and system time of the process and all its threads from line to line;
* rollout, wall: xtrain's `rollout_time`, and the duration of `generate` in TRL, without the steps in which a program
  was stopped.

PyTorch runs with OMP_WAIT_POLICY=PASSIVE unless the environment has another value. Otherwise its threads busy-wait:
this counts as CPU time, and on a shared machine it makes steps with two threads several times longer.

xtrain leaves completions with an advantage of 0 out of the update, so its steps have different lengths: compare the
medians. Before the table, a line per seed and program shows the mean reward of the first and the last 10 steps, the
mean number of tokens of a completion with its end-of-text token, and the held-out rewards before and after training.
xtrain evaluates the models of both programs: `sampled` at temperature 1, `greedy` with the most likely tokens.

The script checks that both tokenizers have the same tokens, that xtrain used the prompts that TRL got, and that both
rewards are the same function. Needs Linux and Python 3.11. Tested with trl 1.16.0, transformers 5.23.0, torch 2.15.0.

`--json FILE` appends one JSON object in one line per comparison, as bench.py does: one list of samples per seed. The
last one has the mean reward of each step as samples, and the held-out rewards.
"""

import argparse
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from bench import ROOT, Records, report, spread, xtrain_version

CONFIG = "configs/grpo.toml"
# steps that a program runs before the other one continues
SLICE = 10
# steps of each program that do not count
WARM = 5
# seconds between two reads of the lines of a program
POLL = 0.005
# steps at the start and at the end of a reward curve
ENDS = 10
# options with the same name and meaning in xtrain and TRL
SAME_KEYS = (
    "num_generations max_completion_length temperature top_p top_k learning_rate weight_decay beta epsilon"
    " num_iterations steps_per_generation loss_type importance_sampling_level scale_rewards"
).split()
PACKAGES = ["trl", "transformers", "torch", "datasets"]


def fail(message):
    sys.exit(f"grpo.py: failed: {message}")


def lines_of(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def sum_reward(prompts, completions, **_):
    """1 for completions whose first line is the sum with three digits, otherwise 0. A reward function of TRL."""
    answers = (f"{sum(map(int, prompt.rstrip('=').split('+'))):03}" for prompt in prompts)
    first_lines = (completion.strip().split("\n")[0].strip() for completion in completions)
    return [float(line == answer) for line, answer in zip(first_lines, answers, strict=True)]


def trl_options(grpo, seed, steps):
    """The options of GRPOConfig for `[grpo]` of a resolved configuration of xtrain."""
    return {
        **{key: grpo[key] for key in SAME_KEYS},
        "per_device_train_batch_size": grpo["prompts_per_step"] * grpo["num_generations"],
        "max_steps": steps,
        "lr_scheduler_type": grpo["schedule"],
        "warmup_steps": grpo["warmup"],
        "adam_beta1": grpo["beta1"],
        "adam_beta2": grpo["beta2"],
        "adam_epsilon": grpo["eps"],
        "max_grad_norm": grpo["clip"],
        "optim": "adamw_torch_fused",
        "seed": seed,
        "shuffle_dataset": False,
        # f32 without recomputation of activations, which are the defaults of TRL
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def peer(base, prompts, out, threads, options):
    """Trains `base` with TRL. Writes a line per step to OUT/steps.jsonl, and the trained model to OUT/model."""
    import datasets
    import torch
    import transformers
    import trl

    torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows, out = lines_of(prompts), Path(out)
    if tokenizer([row["prompt"] for row in rows])["input_ids"] != [row["prompt_ids"] for row in rows]:
        fail("the tokenizers of transformers and xtrain differ")
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id != model.generation_config.eos_token_id:
        fail("no end-of-text token in the exported model")

    generation = []
    generate = model.generate

    def timed(*args, **more):
        start = time.perf_counter()
        tokens = generate(*args, **more)
        generation.append(time.perf_counter() - start)
        return tokens

    model.generate = timed

    class Lines(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if logs and "reward" in logs:
                lines.write(json.dumps({**logs, "step": state.global_step, "rollout_time": sum(generation)}) + "\n")
                generation.clear()

    with open(out / "steps.jsonl", "w", buffering=1) as lines:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=sum_reward,
            args=trl.GRPOConfig(output_dir=str(out / "trainer"), **options),
            train_dataset=datasets.Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
            processing_class=tokenizer,
            callbacks=[Lines()],
        )
        trainer.train()
    trainer.save_model(str(out / "model"))


class Program:
    """A program that appends a line to a file after each step, and its seconds from line to line."""

    def __init__(self, command, lines, log, **env):
        self.command, self.lines, self.log = command, Path(lines), Path(log)
        self.done, self.wall, self.cpu, self.resumed = 0, [], [], []
        with open(log, "w") as out:
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **env}
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=env)
        # clock_getcpuclockid(3): the CPU time of all threads of a process
        self.clock = (~self.process.pid << 3) | 2

    def run(self, steps):
        """Continues the program for this number of steps, and stops it."""
        self.resumed.append(self.done)
        self.process.send_signal(signal.SIGCONT)
        start, cpu_start, until = time.perf_counter(), self.cpu_time(), self.done + steps
        while self.done < until:
            time.sleep(POLL)
            # WNOWAIT: keeps the clock of a process that has ended
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            new = self.count() - self.done
            if new > 0:
                now, cpu = time.perf_counter(), self.cpu_time()
                self.wall += [(now - start) / new] * new
                self.cpu += [(cpu - cpu_start) / new] * new
                self.done, start, cpu_start = self.done + new, now, cpu
            elif ended:
                self.failed(f"ended after {self.done} steps")
        self.process.send_signal(signal.SIGSTOP)

    def cpu_time(self):
        return time.clock_gettime(self.clock)

    def count(self):
        return self.lines.read_bytes().count(b"\n") if self.lines.exists() else 0

    def finish(self):
        """Continues the program until it ends."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.wait():
            self.failed(f"exit status {self.process.returncode}")

    def failed(self, why):
        fail(f"{why}: {self.command}\n{self.log.read_text()[-3000:]}")

    def samples(self):
        """The samples in milliseconds: wall and CPU time of a step, and wall time of the rollouts."""
        rollouts = [1e3 * line["rollout_time"] for line in lines_of(self.lines)]
        # the step after a slice may have begun before the program was stopped
        whole = [ms for i, ms in enumerate(rollouts) if i >= WARM and i not in self.resumed]
        return [1e3 * s for s in self.wall[WARM:]], [1e3 * s for s in self.cpu[WARM:]], whole


class Xtrain:
    """The command line of xtrain, and the directories of the comparison."""

    def __init__(self, args, work):
        self.args, self.work = args, work

    def command(self, run, seed, init=None, **settings):
        """A run of configs/grpo.toml with other values of `[grpo]`."""
        start = ["--init", str(init)] if init else []
        values = [arg for key, value in settings.items() for arg in ("--set", f"grpo.{key}={value}")]
        common = ["-c", CONFIG, "--run", str(run), "--seed", str(seed), "--threads", str(self.args.threads)]
        return [str(self.args.xtrain), "grpo", *common, *start, *values]

    def call(self, *command):
        command = [*map(str, command)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        if done.returncode:
            fail(f"exit status {done.returncode}: {command}\n{done.stdout[-3000:]}")

    def base(self):
        """Trains the base model. Returns its export, and `[grpo]` of the resolved configuration."""
        run, out = self.work / "base", self.work / "base-hf"
        self.call(*self.command(run, 0, steps=1))
        self.call(self.args.xtrain, "export", run / "base", out)
        return out, tomllib.loads((run / "config.toml").read_text())["grpo"]

    def prompts(self, base, seed, count):
        """A file with the first `count` prompts of the runs with this seed. They depend only on the seed."""
        run, file = self.work / f"prompts-{seed}", self.work / f"prompts-{seed}.jsonl"
        sizes = {"steps": 1, "prompts_per_step": count, "num_generations": 2, "max_completion_length": 1}
        self.call(*self.command(run, seed, base, **sizes))
        rows = [row for row in lines_of(run / "rollouts/step_000001.jsonl") if row["sample"] % 2 == 0]
        rows = [{key: row[key] for key in ("prompt", "prompt_ids")} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    def held_out(self, name, model):
        """The rewards of a model on the held-out prompts: the evaluation before the first step."""
        run = self.work / f"held-out-{name}"
        self.call(*self.command(run, 0, model, steps=1, prompts_per_step=1, num_generations=2))
        first = lines_of(run / "metrics.jsonl")[0]
        return {key: first[f"eval/reward_{key}"] for key in ("sampled", "greedy")}


def check_rollouts(run, prompts, groups, size):
    """Checks that a run used the prompts of a file, in its order, and had the rewards that TRL had."""
    expected = [row["prompt"] for row in lines_of(prompts)]
    rollouts = sorted((run / "rollouts").iterdir())
    if len(rollouts) * groups != len(expected):
        fail(f"{run}: expected {len(expected) // groups} generation batches, found {len(rollouts)}")
    for step, file in enumerate(rollouts):
        rows = lines_of(file)
        if [row["prompt"] for row in rows[::size]] != expected[step * groups : (step + 1) * groups]:
            fail(f"{file}: other prompts than those of TRL")
        columns = ([row[key] for row in rows] for key in ("prompt", "completion"))
        if sum_reward(*columns) != [row["reward"] for row in rows]:
            fail(f"{file}: other rewards than those of TRL")


def compare(args, xtrain, base, grpo, seed):
    """Trains with both programs, alternating. Returns them, the rewards of each step, and the trained models."""
    groups, size = grpo["prompts_per_step"], grpo["num_generations"]
    prompts = xtrain.prompts(base, seed, args.steps * groups)
    run, out = xtrain.work / f"xtrain-{seed}", xtrain.work / f"trl-{seed}"
    out.mkdir()
    what = [str(base), str(prompts), str(out), args.threads, trl_options(grpo, seed, args.steps)]
    mine = xtrain.command(run, seed, base, steps=args.steps, eval_every=0, save_every=1 << 30)
    theirs = [sys.executable, __file__, "--what", json.dumps(what)]
    both = []
    try:
        both.append(trl := Program(theirs, out / "steps.jsonl", out / "log", OMP_NUM_THREADS=str(args.threads)))
        trl.run(WARM)
        both.append(ours := Program(mine, run / "timings.jsonl", xtrain.work / f"xtrain-{seed}.log"))
        ours.run(WARM)
        while ours.done < args.steps or trl.done < args.steps:
            for program in (ours, trl):
                if program.done < args.steps:
                    program.run(min(SLICE, args.steps - program.done))
        for program in (ours, trl):
            program.finish()
    finally:
        for program in both:
            program.process.kill()
            program.process.wait()
    check_rollouts(run, prompts, groups, size)
    curves = [run / "metrics.jsonl", out / "steps.jsonl"]
    curves = [[line for line in lines_of(file) if line["step"] > 0] for file in curves]
    return (ours, trl), curves, (run, out / "model")


def print_rewards(seed, program, curve, before, after):
    rewards = [line["reward"] for line in curve]
    first, last = (statistics.fmean(part) for part in (rewards[:ENDS], rewards[-ENDS:]))
    length = statistics.fmean(line["completions/mean_length"] for line in curve)
    held_out = ", ".join(f"{key} {before[key]:.3f} to {after[key]:.3f}" for key in before)
    print(
        f"{f'reward, seed {seed}':<28} {program:<9} first {ENDS} {first:.3f}  last {ENDS} {last:.3f}  "
        f"length {length:.2f}  held-out {held_out}",
        flush=True,
    )


def run(args, records, versions, work):
    """Runs all seeds, prints the rewards and the table, and completes the records."""
    xtrain = Xtrain(args, Path(work))
    base, grpo = xtrain.base()
    before = xtrain.held_out("base", base)
    names = ["grpo step, wall", "grpo step, CPU", "grpo rollout, wall"]
    held_out = {"xtrain": [], "peer_figures": []}
    for seed in args.seeds:
        programs, curves, models = compare(args, xtrain, base, grpo, seed)
        commands = [[arg.replace(work, "WORK") for arg in program.command] for program in programs]
        samples = zip(*(program.samples() for program in programs), strict=True)
        for name, pair in zip(names, samples, strict=True):
            records.add(name, "trl", commands, pair)
        records.add("grpo reward", "trl", commands, [[line["reward"] for line in curve] for curve in curves])
        after = [xtrain.held_out(f"{seed}-{i}", model) for i, model in enumerate(models)]
        for side, program, curve, rewards in zip(held_out, ("xtrain", "trl"), curves, after, strict=True):
            held_out[side].append(rewards)
            print_rewards(seed, program, curve, before, rewards)
    for (name, _), record in records.by_name.items():
        record.update(seeds=args.seeds, steps=args.steps, unit="reward" if "reward" in name else "ms")
        record["peer_figures"].update(packages=versions, omp_wait_policy=os.environ["OMP_WAIT_POLICY"])
        sides = [record[side] for side in held_out]
        if "reward" in name:
            record["held_out_before"] = before
            for side in held_out:
                record[side]["held_out"] = held_out[side]
        else:
            report(name, *(spread(sum(side["samples"], [])) for side in sides), peer="trl")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--xtrain", default=ROOT / "target/release/xtrain")
    parser.add_argument("--json", metavar="FILE", help="append the samples of each comparison as a line of JSON")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what:
        return peer(*json.loads(args.what))
    if args.steps < WARM + SLICE:
        parser.error(f"--steps must be at least {WARM + SLICE}")
    if not Path(args.xtrain).is_file():
        fail(f"{args.xtrain}: no such program; build it with: cargo build --release, or use --xtrain")
    try:
        versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        fail(f"package {error.name} is not installed; needs {', '.join(PACKAGES)}")
    args.xtrain, args.dtype = Path(args.xtrain).resolve(), "f32"
    print("; ".join([xtrain_version(args), *(f"{name} {version}" for name, version in versions.items())]))
    wait = os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    print(f"threads {args.threads}, OMP_WAIT_POLICY {wait}, steps {args.steps}, seeds {args.seeds}", flush=True)
    records = Records(args)
    with tempfile.TemporaryDirectory() as work:
        run(args, records, versions, work)
    if args.json:
        records.append_to(args.json)


if __name__ == "__main__":
    main()
