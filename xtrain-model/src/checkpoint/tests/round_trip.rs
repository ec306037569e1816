//! Loaded checkpoints are bit-identical to saved ones.
use super::*;

/// Unusual shapes, one of them larger than a piece and not a multiple of it.
fn ugly() -> Sample {
    const { assert!((PIECE / 12 + 11) * 3 > PIECE / 4) };
    let shapes: [(&str, &[usize]); 5] = [
        ("model.embed_tokens.weight", &[PIECE / 12 + 11, 3]),
        ("model.norm.weight", &[1]),
        ("a scalar", &[]),
        ("\u{e9}\"quoted\"\\", &[1, 1, 1, 1, 1, 1, 2, 3]),
        ("lm_head.weight", &[5, 7]),
    ];
    Sample::of(123_456_789, 5, &shapes)
}

#[test]
fn a_checkpoint_on_the_real_file_system_is_loaded_bit_identically() {
    let dir = tempdir().unwrap();
    let run = dir.path().join("runs/one");
    let sample = ugly();
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), &run, 2).unwrap();
    let path = sample.with(|snapshot| checkpoints.save(snapshot)).unwrap().path;
    assert!(path.ends_with("checkpoints/step_123456789"));
    let found = newest_good(&RealFs, &run, &LoadOptions::default(), &NamedTensor::begin).unwrap();
    assert!(sample.is(&found.loaded) && found.refused.is_empty());
    assert_eq!((found.loaded.numerics.as_str(), found.loaded.dtype.as_str()), ("1", "f32"));
    assert_eq!(found.loaded.files[0], ("tokenizer.json".to_owned(), b"{\"model\":{}}".to_vec()));
    let weights = load_weights(&RealFs, &path, &LoadOptions::default()).unwrap();
    assert!(same(&sample.model, &weights.tensors) && weights.config == sample.config);
}

#[test]
#[cfg(feature = "faults")]
fn a_checksum_of_the_last_piece_alone_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    let (fs, path) = faults::with(Fault::ChecksumOfLastPiece, || saved(&ugly()));
    let error = load(&fs, &path, &LoadOptions::default()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Checksum { tensor: Some(name), .. } if name.contains("embed")),
        "{error}"
    );
}

#[test]
fn any_safetensors_reader_reads_what_was_written() {
    let sample = ugly();
    let (fs, path) = saved(&sample);
    let bytes = bytes(&fs, &path.join("model.safetensors"));
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, shape, data) in &sample.model {
        let found = file.tensor(name).unwrap();
        assert_eq!((found.dtype(), found.shape()), (safetensors::Dtype::F32, &shape[..]));
        assert!(
            found.data().iter().eq(data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>().iter()),
            "{name}"
        );
    }
}

#[test]
fn two_saves_of_the_same_contents_have_the_same_bytes() {
    let ((one, path), (other, _)) = (saved(&ugly()), saved(&ugly()));
    for name in FILES {
        assert_eq!(bytes(&one, &path.join(name)), bytes(&other, &path.join(name)), "{name}");
    }
}

#[test]
fn a_checkpoint_without_a_trainer_has_none() {
    let (fs, sample) = (SimulatedFs::default(), Sample::small(1, 0));
    let _ =
        sample.with(|snapshot| opened(&fs).save(&CheckpointContents { trainer: None, ..*snapshot })).unwrap();
    assert!(newest(&fs).unwrap().loaded.trainer.is_none());
}

#[test]
fn half_precision_is_widened_exactly() {
    let bits = [0x3c00u16, 0x8000, 0x0001, 0x7bff, 0xfbff, 0x3555];
    let (fs, dir) = (SimulatedFs::default(), Path::new("half"));
    let data: Vec<u8> = bits.iter().chain(&bits).flat_map(|bits| bits.to_le_bytes()).collect();
    let text = r#"{"b":{"dtype":"BF16","shape":[6],"data_offsets":[12,24]},"h":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
    fs.create_dir(dir).unwrap();
    fs.create(&dir.join("config.json")).unwrap().write(b"{}").unwrap();
    let mut file = fs.create(&dir.join("model.safetensors")).unwrap();
    file.write(&[&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat()).unwrap();
    let weights = load_weights(&fs, dir, &LoadOptions::default()).unwrap();
    let halves: Vec<f32> = bits.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
    let brains: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect();
    let want = [("h".into(), vec![2, 3], halves), ("b".into(), vec![6], brains)];
    assert!(same(&want, &weights.tensors));
}
