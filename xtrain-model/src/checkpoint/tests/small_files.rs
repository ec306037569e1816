//! Small files of a checkpoint: listed in its manifest, or only in its directory.
use super::*;

#[test]
fn the_small_files_of_the_newest_checkpoint_are_read() {
    let (fs, dir) = saved(&Sample::small(1, 0));
    let tokenizer = Some((dir.join("tokenizer.json"), b"{\"model\":{}}".to_vec()));
    assert_eq!(newest_file(&fs, run(), "tokenizer.json").unwrap(), tokenizer);
    assert_eq!(newest_file(&fs, run(), "vocab.json").unwrap(), None);
}

#[test]
fn a_file_that_the_manifest_does_not_list_is_read_if_it_exists() {
    let run = tempdir().unwrap();
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    let dir = Sample::small(1, 0).with(|snapshot| checkpoints.save(snapshot)).unwrap().path;
    std::fs::write(dir.join("chat_template.jinja"), "{{ 1 }}").unwrap();
    let checkpoint = with_manifest(&RealFs, &dir).unwrap().unwrap();
    let file = |name: &str| checkpoint.file(name).unwrap();
    assert_eq!(file("generation_config.json").unwrap(), b"{}\n");
    assert_eq!(file("chat_template.jinja").unwrap(), b"{{ 1 }}");
    assert_eq!(file("vocab.json"), None);
    assert!(with_manifest(&RealFs, run.path()).unwrap().is_none(), "the directory of a run has no manifest");
}

#[test]
fn a_changed_byte_of_a_listed_small_file_is_refused() {
    let run = tempdir().unwrap();
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    let dir = Sample::small(1, 0).with(|snapshot| checkpoints.save(snapshot)).unwrap().path;
    for name in ["tokenizer.json", "generation_config.json"] {
        let mut bytes = std::fs::read(dir.join(name)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(dir.join(name), bytes).unwrap();
        let checkpoint = with_manifest(&RealFs, &dir).unwrap().unwrap();
        let error = checkpoint.file(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("crc"), "{error}");
    }
}
