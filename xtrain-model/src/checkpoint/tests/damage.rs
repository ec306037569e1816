//! Every damaged byte of a checkpoint is detected.
use rand::RngExt as _;
use xtrain_tensor::testing::times;

use super::*;

/// Loads a copy of the disk with one changed file. Panics unless the error names the file and, if the first changed
/// byte belongs to a tensor, the tensor.
#[track_caller]
fn check_refused(fs: &SimulatedFs, dir: &Path, name: &str, at: usize, change: impl FnOnce(&mut Vec<u8>)) {
    let (copy, path) = (fs.fork(), dir.join(name));
    let before = bytes(fs, &path);
    copy.damage(&path, change).unwrap();
    let error = load(&copy, dir, &LoadOptions::default()).expect_err("damage is refused").to_string();
    assert!(error.contains(name), "{name} at {at}: {error}");
    if let Some(tensor) = tensor_at(&before, at) {
        assert!(error.contains(&format!("tensor {tensor}:")), "{name} at {at}, tensor {tensor}: {error}");
    }
}

/// The tensor of a safetensors file that a byte belongs to.
fn tensor_at(bytes: &[u8], at: usize) -> Option<String> {
    let (header, metadata) = safetensors::SafeTensors::read_metadata(bytes).ok()?;
    let at = at.checked_sub(8 + header)?;
    let tensors = metadata.tensors();
    tensors
        .into_iter()
        .find(|(_, info)| (info.data_offsets.0..info.data_offsets.1).contains(&at))
        .map(|(name, _)| name)
}

fn sample() -> Sample {
    let shapes: [(&str, &[usize]); 4] = [
        ("model.embed_tokens.weight", &[37, 12]),
        ("model.layers.0.self_attn.q_proj.weight", &[20, 12]),
        ("model.layers.0.mlp.down_proj.weight", &[12, 7]),
        ("model.norm.weight", &[12]),
    ];
    Sample::of(40, 0, &shapes)
}

#[test]
fn flips_and_truncations_are_refused_by_file_and_tensor() {
    let (fs, dir) = saved(&sample());
    let files = FILES.map(|name| (name, bytes(&fs, &dir.join(name)).len()));
    let total: usize = files.iter().map(|(_, length)| length).sum();
    let mut random = rng(3);
    let cases = times(1000, 10_000);
    for case in 0..cases {
        // Every other case picks a file uniformly, so that small files are covered.
        let (name, at) = if case % 2 == 0 {
            let (name, length) = files[random.random_range(0..files.len())];
            (name, random.random_range(0..length))
        } else {
            let mut at = random.random_range(0..total);
            let file = files.iter().find(|(_, length)| {
                at < *length || {
                    at -= length;
                    false
                }
            });
            (file.unwrap().0, at)
        };
        match random.random_range(0..4) {
            0 => check_refused(&fs, &dir, name, at, |bytes| bytes.truncate(at)),
            1 => check_refused(&fs, &dir, name, at, |bytes| {
                bytes[at] = bytes[at].wrapping_add(random.random_range(1..=255u8));
            }),
            _ => check_refused(&fs, &dir, name, at, |bytes| bytes[at] ^= 1 << random.random_range(0..8)),
        }
    }
}

#[test]
fn a_missing_or_longer_file_is_refused() {
    let (fs, dir) = saved(&sample());
    for name in FILES {
        check_refused(&fs, &dir, name, usize::MAX, |bytes| bytes.push(b'\n'));
        let copy = fs.fork();
        copy.remove_file(&dir.join(name)).unwrap();
        let error = load(&copy, &dir, &LoadOptions::default()).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::Missing { path, .. } if *path == dir.join(name)),
            "{error}"
        );
    }
}

#[test]
fn the_newest_good_checkpoint_is_found_below_damaged_ones() {
    let fs = SimulatedFs::default();
    let checkpoints = CheckpointDir::open(Arc::new(fs.clone()), run(), 3).unwrap();
    let samples = [1, 2, 3].map(|step| Sample::small(step, 0));
    let paths =
        samples.each_ref().map(|sample| sample.with(|snapshot| checkpoints.save(snapshot)).unwrap().path);
    fs.damage(&paths[2].join("model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
    fs.damage(&paths[1].join("manifest.json"), |bytes| bytes.truncate(100)).unwrap();
    let found = newest(&fs).unwrap();
    assert!(samples[0].is(&found.loaded));
    let refused: Vec<String> = found.refused.iter().map(Refused::to_string).collect();
    assert!(
        refused[0].contains("step_000003") && refused[0].contains("tensor lm_head.weight"),
        "{refused:?}"
    );
    assert!(refused[1].contains("step_000002") && refused[1].contains("manifest.json"), "{refused:?}");
    fs.damage(&paths[0].join("config.json"), Vec::clear).unwrap();
    match newest(&fs).unwrap_err() {
        CheckpointError::NoneGood { refused, .. } => assert_eq!(refused.len(), 3),
        error => panic!("{error}"),
    }
}
