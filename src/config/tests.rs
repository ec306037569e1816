//! Layers, suggested keys, types and invalid values.
use tempfile::NamedTempFile;
use toml::Value;

use super::*;

/// A temporary file with this text.
fn written(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, text).unwrap();
    file
}

fn layer(file: &NamedTempFile) -> Layer {
    Layer::File(file.path().into())
}

fn set(text: &str) -> Layer {
    Layer::Set(text.to_string())
}

fn with(sets: &[&str]) -> Result<RunConfig> {
    RunConfig::load(&sets.iter().map(|text| set(text)).collect::<Vec<_>>())
}

#[track_caller]
fn refused(sets: &[&str], parts: &[&str]) {
    let message = with(sets).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn the_default_is_valid_and_equals_its_derived_values() {
    let config = with(&[]).unwrap();
    assert_eq!(config, RunConfig::default());
}

#[test]
fn later_layers_win() {
    let a = written("[train]\nsteps = 5\nbatch = 2\n[model]\ndim = 64\n");
    let b = written("train.steps = 6\n");
    let flag = Layer::Flag { flag: "--seed", key: "train.seed", value: Value::Integer(9) };
    let layers = [layer(&a), layer(&b), set("train.seed=3"), set("train.seed=9"), set("model.dim=96"), flag];
    let config = RunConfig::load(&layers).unwrap();
    assert_eq!((config.train.steps, config.train.batch, config.train.seed, config.model.dim), (6, 2, 9, 96));
    let config = RunConfig::load(&[layer(&b), layer(&a)]).unwrap();
    assert_eq!((config.train.steps, config.model.dim), (5, 64));
}

#[test]
fn a_flag_that_contradicts_a_set_before_it_is_refused() {
    let flag = || Layer::Flag { flag: "--seed", key: "train.seed", value: Value::Integer(9) };
    let file = written("[train]\nseed = 3\n");
    assert_eq!(RunConfig::load(&[layer(&file), flag()]).unwrap().train.seed, 9);
    assert_eq!(RunConfig::load(&[flag(), set("train.seed=3")]).unwrap().train.seed, 3);
    let error = RunConfig::load(&[set("train.seed=3"), flag()]).unwrap_err().to_string();
    assert_eq!(error, "--seed and --set train.seed=3: expected one value of `train.seed`, found two");
}

#[test]
fn values_of_set_are_toml_and_bare_words_are_strings() {
    let config = with(&[
        "train.schedule=wsd",
        "train.dtype=\"bf16\"",
        "train.learning_rate=1",
        "model.qk_norm = false",
        "train.steps=2_000",
        "data.tokenizer=123",
        "data.files=[\"a\", 'b']",
    ])
    .unwrap();
    assert_eq!((config.train.schedule, config.train.dtype), (DecayKind::Wsd, Precision::Bf16));
    assert_eq!((config.train.learning_rate, config.train.steps, config.model.qk_norm), (1.0, 2000, false));
    assert_eq!((config.data.tokenizer.as_str(), config.data.files), ("123", vec!["a".into(), "b".into()]));
    assert_eq!(with(&["data.files=a=b.txt"]).unwrap().data.files, ["a=b.txt"]);
}

#[test]
fn an_unknown_key_names_its_file_line_and_nearest_key() {
    let a = written("# steps\n[train]\nsteps = 5\nlerning_rate = 1e-3\n");
    let message = RunConfig::load(&[layer(&a)]).unwrap_err().to_string();
    let place = format!("{}:4: ", a.path().display());
    assert!(message.starts_with(&place), "{message}");
    assert!(
        message.contains("`train.lerning_rate`") && message.contains("`train.learning_rate`"),
        "{message}"
    );
    refused(&["modle.dim=3"], &["--set modle.dim=3", "`modle.dim`", "`model.dim`"]);
    refused(&["steps=3"], &["`steps`", "`train.steps`"]);
    refused(&["train.steps.x=3"], &["`train.steps`"]);
    // the names of other programs
    refused(&["model.n_embd=64"], &["`model.n_embd`; did you mean `model.dim`?"]);
    refused(&["train.max_steps=64"], &["`train.max_steps`; did you mean `train.steps`?"]);
}

#[test]
fn only_a_near_name_is_suggested() {
    let message = |text: &str| with(&[text]).unwrap_err().to_string();
    for (text, want) in [
        ("foo=1", "--set foo=1: unknown key `foo`"),
        ("=1", "--set =1: unknown key ``"),
        (
            "train.schedule=",
            "expected one of cosine, linear, wsd, wsd-cosine, wsd-sqrt, constant, found \"\"",
        ),
        ("model.preset=nothing", "base-125m, qwen3-0.6b, found \"nothing\""),
    ] {
        assert!(message(text).ends_with(want), "{}", message(text));
    }
}

#[test]
fn a_number_that_no_integer_holds_is_named_as_such() {
    let nines = "9".repeat(30);
    refused(
        &[&format!("train.steps={nines}")],
        &["`train.steps`", "a whole number", &format!("found {nines}, which is above the largest integer")],
    );
    let file = written(&format!("[train]\nsteps = {nines}\n"));
    let message = RunConfig::load(&[layer(&file)]).unwrap_err().to_string();
    assert!(message.ends_with(":2: expected a number of at most 2^63 - 1"), "{message}");
}

#[test]
fn the_old_name_of_a_key_is_accepted() {
    let old = written("[train]\nrecompute = true\n");
    assert!(RunConfig::load(&[layer(&old)]).unwrap().train.gradient_checkpointing);
    let both = written("[train]\nrecompute = true\ngradient_checkpointing = false\n");
    let error = RunConfig::load(&[layer(&both)]).unwrap_err().to_string();
    assert!(error.contains("train.gradient_checkpointing is set twice"), "{error}");
    let config = with(&["train.recompute=true"]).unwrap();
    assert!(
        config.train.gradient_checkpointing && config.to_toml().contains("gradient_checkpointing = true")
    );
    assert_eq!(with(&["train.gradient_checkpointing=true"]).unwrap(), config);
    let parsed: RunConfig =
        toml::from_str(&config.to_toml().replace("gradient_checkpointing", "recompute")).unwrap();
    assert_eq!(parsed, config);
}

#[test]
fn a_value_of_another_type_names_the_key_and_both_types() {
    refused(&["train.steps=many"], &["`train.steps`", "a whole number", "the string \"many\""]);
    assert_eq!(with(&["train.steps=2e3"]).unwrap().train.steps, 2000);
    refused(&["train.steps=2.5"], &["`train.steps`", "a whole number", "the number 2.5"]);
    refused(&["train.steps=-2e3"], &["`train.steps`", "a whole number", "the number -2000.0"]);
    refused(&["train.steps=-1"], &["`train.steps`", "-1"]);
    refused(&["model.qk_norm=1"], &["`model.qk_norm`", "true or false", "1"]);
    refused(&["train.learning_rate=true"], &["`train.learning_rate`", "a number", "true"]);
    refused(&["data.files=[1]"], &["`data.files`", "a list of strings"]);
    refused(&["train=1"], &["`train`", "a section"]);
    refused(&["train.steps"], &["--set train.steps", "section.key=value"]);
    refused(
        &["train.schedule=cosin"],
        &["`train.schedule`", "linear", "\"cosin\"", "did you mean \"cosine\"?"],
    );
    refused(&["model.preset=tiny"], &["`model.preset`", "qwen3-0.6b", "\"tiny-1m\""]);
    let table = written("[train.steps]\nx = 1\n");
    let message = RunConfig::load(&[layer(&table)]).unwrap_err().to_string();
    assert!(message.contains(":2: unknown key `train.steps.x`"), "{message}");
}

#[test]
fn a_file_that_is_not_toml_names_the_line() {
    let a = written("[train]\nsteps = = 5\n");
    let message = RunConfig::load(&[layer(&a)]).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("{}:2: ", a.path().display())) && !message.contains('\n'),
        "{message}"
    );
    let missing = RunConfig::load(&[Layer::File("no/such/file.toml".into())]).unwrap_err();
    assert!(matches!(missing, Error::Read { .. }), "{missing}");
}

#[test]
fn an_invalid_value_names_its_key() {
    for (sets, key) in [
        (&["model.n_layers=0"][..], "model.n_layers"),
        (&["model.dim=100", "model.n_heads=3"], "model.dim"),
        (&["model.n_heads=0"], "model.n_heads"),
        (&["model.n_heads=4", "model.n_kv_heads=3"], "model.n_kv_heads"),
        (&["model.head_dim=33"], "model.head_dim"),
        (&["model.head_dim=258"], "model.head_dim"),
        (&["model.dim=9223372036854775807"], "model.dim"),
        (&["model.rope_theta=nan"], "model.rope_theta"),
        (&["train.context=0"], "train.context"),
        (&["train.batch=4", "train.micro_batch=5"], "train.micro_batch"),
        (&["train.learning_rate=inf"], "train.learning_rate"),
        (&["train.initial_learning_rate=1"], "train.initial_learning_rate"),
        (&["train.min_learning_rate=1"], "train.min_learning_rate"),
        (&["train.beta2=1"], "train.beta2"),
        (&["train.keep=1"], "train.keep"),
        (&["train.steps=5", "train.warmup=6"], "train.warmup"),
        (&["data.val_fraction=1"], "data.val_fraction"),
        (&["sample.top_p=0"], "sample.top_p"),
    ] {
        let message = with(sets).unwrap_err().to_string();
        assert!(message.starts_with(&format!("`{key}` = ")), "{sets:?}: {message}");
    }
}

#[test]
fn a_preset_is_below_its_layer_and_replaces_the_model_of_earlier_layers() {
    let small = preset("small-10m").unwrap().section();
    let want = ModelSection { n_layers: 2, ..small.clone() };
    assert_eq!(with(&["model.n_layers=2", "model.preset=small-10m"]).unwrap().model, want);
    let file = written("[model]\ndim = 96\nn_heads = 3\nqk_norm = false\n[train]\nbatch = 3\n");
    let load = |sets: &[&str]| {
        let flags = sets.iter().map(|text| set(text));
        RunConfig::load(&[layer(&file)].into_iter().chain(flags).collect::<Vec<_>>()).unwrap()
    };
    let config = load(&["model.preset=small-10m"]);
    assert_eq!((config.model, config.train.batch), (small, 3));
    assert_eq!(load(&["model.n_layers=2", "model.preset=small-10m"]).model, want);
    assert_eq!(load(&["model.preset=\"\""]).model.dim, 96);
    let second = written("model.preset = 'tiny-1m'\nmodel.dim = 64\n");
    let config = RunConfig::load(&[layer(&file), layer(&second)]).unwrap();
    assert_eq!(config.model, ModelSection { dim: 64, ..preset("tiny-1m").unwrap().section() });
}

#[test]
fn a_stored_configuration_does_not_fix_computed_values() {
    let resolved =
        Resolved::load(&[set("model.dim=64"), set("train.batch=4"), set("train.warmup=3")]).unwrap();
    let text = resolved.to_toml();
    for line in ["# computed: head_dim = 16", "# computed: micro_batch = 4", "warmup = 3", "batch = 4"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let file = written(&text);
    assert_eq!(Resolved::load(&[layer(&file)]).unwrap(), resolved);
    let config = RunConfig::load(&[layer(&file), set("model.n_heads=8"), set("train.batch=1")]).unwrap();
    let (model, train) = (config.model, config.train);
    assert_eq!((model.head_dim, model.n_kv_heads, train.micro_batch, train.warmup), (8, 8, 1, 3));
    // Files of earlier versions have every value as a key.
    let old = written(&resolved.config.to_toml());
    assert_eq!(RunConfig::load(&[layer(&old)]).unwrap(), resolved.config);
}

#[test]
fn a_change_of_a_run_keeps_its_computed_values() {
    let resolved = Resolved::load(&[set("train.steps=500"), set("train.learning_rate=1e-2")]).unwrap();
    let changed = resolved.changed(&[set("train.steps=1000"), set("train.learning_rate=1e-4")]).unwrap();
    let train = &changed.config.train;
    assert_eq!((train.steps, train.warmup, train.decay, train.min_learning_rate), (1000, 50, 100, 1e-5));
    let text = changed.to_toml();
    for line in ["warmup = 50", "decay = 100", "# computed: min_learning_rate = 0.00001", "steps = 1000"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let file = written(&text);
    assert_eq!(Resolved::load(&[layer(&file)]).unwrap(), changed);
    assert_eq!(resolved.changed(&[]).unwrap(), resolved);
    // numbers of steps beyond those of a shorter run are computed again
    let shorter = resolved.changed(&[set("train.steps=80")]).unwrap().config.train;
    assert_eq!((shorter.steps, shorter.warmup, shorter.decay), (80, 50, 16));
    let shortest = resolved.changed(&[set("train.steps=40")]).unwrap().config.train;
    assert_eq!((shortest.steps, shortest.warmup, shortest.decay), (40, 4, 8));
    // a number of steps that an earlier change has kept is no longer computed, but one that is not used is
    let kept =
        resolved.changed(&[set("train.steps=300")]).unwrap().changed(&[set("train.steps=90")]).unwrap();
    assert_eq!((kept.config.train.warmup, kept.config.train.decay), (50, 18));
    let sets = [set("train.steps=500"), set("train.decay=100"), set("train.schedule=wsd")];
    let given = Resolved::load(&sets).unwrap();
    assert!(given.changed(&[set("train.steps=80")]).is_err());
    let unused = given.changed(&[set("train.steps=80"), set("train.schedule=linear")]).unwrap();
    assert_eq!(unused.config.train.decay, 16);
    let used = unused.changed(&[set("train.steps=79"), set("train.schedule=wsd")]).unwrap();
    assert_eq!(used.config.train.decay, 16, "16 of 79 is no longer computed");
    assert!(unused.to_toml().contains("# computed: decay = 16"));
    assert!(unused.changed(&[set("train.decay=81")]).is_err());
}

#[test]
fn no_flipped_bit_of_a_stored_configuration_changes_a_recorded_value() {
    let sets = ["train.learning_rate=3e-4", "train.dtype=bf16", "train.seed=77", "grpo.beta=0.01"];
    let resolved = Resolved::load(&sets.map(set)).unwrap();
    let (recorded, text) = (record(&resolved.config), resolved.to_toml());
    assert_eq!(differences("run.toml", &recorded, &resolved.config).unwrap(), []);
    let (mut accepted, mut named) = (0, 0);
    for at in (0..8 * text.len()).step_by(61) {
        let mut bytes = text.clone().into_bytes();
        bytes[at / 8] ^= 1 << (at % 8);
        let Ok(flipped) = String::from_utf8(bytes) else { continue };
        let file = written(&flipped);
        let Ok(found) = RunConfig::load(&[layer(&file)]) else { continue };
        let differing = differences("run.toml", &recorded, &found).unwrap();
        assert!(!differing.is_empty() || record(&found) == recorded, "bit {at}: {flipped}");
        accepted += usize::from(differing.is_empty());
        named += differing.len();
    }
    assert!(accepted > 3 && named > 3, "{accepted} {named}");
}

#[test]
fn a_record_has_the_number_of_reward_programs_and_not_their_commands() {
    let rewards = |list: &str| with(&["grpo.prompts=p.jsonl", &format!("grpo.reward={list}")]).unwrap();
    let recorded = record(&rewards("['sh a.sh', 'sh b.sh']"));
    assert!(!recorded.contains("sh a.sh"), "{recorded}");
    assert_eq!(differences("run.toml", &recorded, &rewards("['sh c.sh', 'sh d.sh']")).unwrap(), []);
    let removed = differences("run.toml", &recorded, &rewards("['sh a.sh']")).unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!((removed[0].key.as_str(), &removed[0].found), ("grpo.reward_programs", &Value::Integer(1)));
    // A record of an earlier version does not have the number.
    let earlier = recorded.replace("reward_programs = 2\n", "");
    assert_eq!(differences("run.toml", &earlier, &rewards("['sh a.sh']")).unwrap(), []);
}

#[test]
fn a_number_may_begin_or_end_with_its_point() {
    let config =
        with(&["train.weight_decay=.5", "train.learning_rate=1.", "train.min_learning_rate=.0"]).unwrap();
    assert_eq!((config.train.weight_decay, config.train.learning_rate), (0.5, 1.0));
    assert!(with(&["train.weight_decay=."]).is_err() && with(&["train.steps=5."]).is_err());
}

#[test]
fn unset_sizes_are_derived_from_the_others() {
    let config = with(&["model.dim=192", "model.n_heads=6", "train.steps=50", "train.batch=3"]).unwrap();
    let model = &config.model;
    assert_eq!((model.n_kv_heads, model.head_dim, model.ffn_dim), (6, 32, 512));
    assert_eq!((config.train.warmup, config.train.decay, config.train.micro_batch), (5, 10, 3));
}

#[test]
fn a_resolved_configuration_reads_back_as_itself() {
    let config =
        with(&["model.preset=tiny-3m", "train.learning_rate=3e-4", "data.files=a b", "train.eps=1e-8"])
            .unwrap();
    let file = written(&config.to_toml());
    assert_eq!(RunConfig::load(&[layer(&file)]).unwrap(), config);
}

#[test]
fn the_committed_configurations_load() {
    for name in ["shakespeare", "quickstart"] {
        let path = format!("{}/configs/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        RunConfig::load(&[Layer::File(path.into())]).unwrap();
    }
}

#[test]
fn a_text_of_several_lines_is_not_taken_for_keys() {
    let prompt = "\n[train]\nwarmup = 3\ndecay = 2\n\"quoted\"\n";
    let file = written(&format!("[sample]\nprompt = {}\n", Value::String(prompt.into())));
    let resolved = Resolved::load(&[layer(&file)]).unwrap();
    let text = resolved.to_toml();
    assert!(text.contains("\n# computed: decay = "), "{text}");
    let stored = written(&text);
    assert_eq!(RunConfig::load(&[layer(&stored)]).unwrap(), resolved.config);
    assert_eq!(resolved.config.sample.prompt, prompt);
}
