//! Errors that the other tests of this module do not cover.
use super::super::control::{self, Verified};
use super::super::manifest::Manifest;
use super::*;

/// The error for a checkpoint whose `file` was rewritten by `change`, with a matching manifest.
pub(super) fn forged(file: &str, change: impl Fn(&mut Vec<u8>)) -> CheckpointError {
    let (fs, dir) = saved(&Sample::small(1, 0));
    fs.damage(&dir.join(file), &change).unwrap();
    let changed = bytes(&fs, &dir.join(file));
    forge(&fs, &dir, |manifest| {
        let record = manifest.files.iter_mut().find(|record| record.name == file).unwrap();
        (record.length, record.crc32c) = (changed.len() as u64, crc32c::crc32c(&changed));
    })
}

/// The error for a checkpoint whose manifest was changed and has a valid checksum.
fn forge(fs: &SimulatedFs, dir: &Path, change: impl FnOnce(&mut Manifest)) -> CheckpointError {
    let path = dir.join("manifest.json");
    let mut manifest = Manifest::decode(&path, &bytes(fs, &path)).unwrap();
    change(&mut manifest);
    fs.damage(&path, |bytes| *bytes = manifest.encode()).unwrap();
    load(fs, dir, &LoadOptions::default()).unwrap_err()
}

/// The error for a checkpoint whose manifest alone was changed.
pub(super) fn forged_manifest(change: impl FnOnce(&mut Manifest)) -> CheckpointError {
    let (fs, dir) = saved(&Sample::small(1, 0));
    forge(&fs, &dir, change)
}

/// The error for saving a changed sample.
fn refused(change: impl FnOnce(&mut Sample)) -> String {
    let mut sample = Sample::small(1, 0);
    change(&mut sample);
    let fs = SimulatedFs::default();
    let error = sample.with(|snapshot| opened(&fs).save(snapshot)).unwrap_err();
    assert!(matches!(error, CheckpointError::Argument { .. }), "{error}");
    assert!(matches!(newest(&fs), Err(CheckpointError::Missing { .. })));
    error.to_string()
}

#[test]
fn contents_that_could_not_be_loaded_are_not_saved() {
    assert!(refused(|sample| sample.model[1].2[3] = f32::NAN).contains("NaN at element 3 of lm_head.weight"));
    assert!(
        refused(|sample| sample.optimizer[0].2[0] = f32::INFINITY)
            .contains("optimizer tensors: expected finite")
    );
    assert!(refused(|sample| sample.model[0].1 = vec![4]).contains("shape [4] with 3 elements"));
    assert!(refused(|sample| sample.model[0].1 = vec![0]).contains("none zero"));
    assert!(
        refused(|sample| sample.model[0].1 = vec![1, 1, 1, 1, 1, 1, 1, 1, 3])
            .contains("at most 8 dimensions")
    );
    assert!(refused(|sample| sample.model[0].0 = "lm_head.weight".into()).contains("unique names"));
    assert!(refused(|sample| sample.model[0].0 = "x".repeat(513)).contains("1 to 512 bytes"));
    assert!(refused(|sample| sample.optimizer[0].0 = "momentum".into()).contains("STATE.PARAMETER"));
    assert!(
        refused(|sample| sample.control.optimizer_states = vec!["m".into(), "v".into(), "x".repeat(1 << 20)])
            .contains("1 MiB")
    );
    let fs = SimulatedFs::default();
    for name in ["", "..", "a/b", "config.json", "manifest.json", "trainer"] {
        let save = |snapshot: &CheckpointContents<'_>| {
            opened(&fs).save(&CheckpointContents { files: &[(name, b"")], ..*snapshot })
        };
        let error = Sample::small(1, 0).with(save).unwrap_err();
        assert!(matches!(error, CheckpointError::Argument { what: "files", .. }), "{name}: {error}");
    }
    let save =
        |snapshot: &CheckpointContents<'_>| opened(&fs).save(&CheckpointContents { step: 2, ..*snapshot });
    let error = Sample::small(1, 0).with(save).unwrap_err();
    assert!(matches!(error, CheckpointError::Argument { what: "control.step", .. }), "{error}");
    let error = CheckpointDir::open(Arc::new(fs), run(), 1).err().unwrap();
    assert!(
        matches!(error, CheckpointError::Argument { what: "number of checkpoints to keep", .. }),
        "{error}"
    );
}

/// The result for a checkpoint whose manifest lists the optimizer states without `control.bin`.
fn without_control() -> Result<LoadedCheckpoint> {
    let (fs, dir) = saved(&Sample::small(1, 0));
    let path = dir.join("manifest.json");
    let mut manifest = Manifest::decode(&path, &bytes(&fs, &path)).unwrap();
    manifest.files.retain(|file| file.name != "trainer/control.bin");
    fs.damage(&path, |bytes| *bytes = manifest.encode()).unwrap();
    load(&fs, &dir, &LoadOptions::default())
}

#[test]
fn optimizer_states_without_the_control_file_are_refused() {
    let error = without_control().unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Missing { path, .. } if path.ends_with("control.bin")),
        "{error}"
    );
}

#[test]
#[cfg(feature = "faults")]
fn a_trainer_without_its_control_file_that_is_accepted_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    assert!(faults::with(Fault::TrainerWithoutControlDropped, without_control).is_ok());
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    use CheckpointError::*;
    let error = forged("config.json", |bytes| *bytes = b"{}".to_vec());
    assert!(matches!(&error, Field { field, .. } if field == "sha-256"), "{error}");
    let error = forged_manifest(|manifest| manifest.step = 2);
    assert!(matches!(&error, Field { field, .. } if field == "step"), "{error}");
    let error = forged_manifest(|manifest| manifest.files[3].tensors.swap(0, 1));
    assert!(matches!(&error, Field { field, .. } if field == "order of tensors"), "{error}");
    let error = forged_manifest(|manifest| manifest.files[3].tensors[0].shape = vec![1, 3]);
    assert!(matches!(error, Shape { .. }), "{error}");
    let error = forged_manifest(|manifest| drop(manifest.files[3].tensors.pop()));
    assert!(matches!(error, UnexpectedTensor { .. }), "{error}");
    let error = forged_manifest(|manifest| drop(manifest.files.remove(3)));
    assert!(matches!(error, Missing { .. }), "{error}");
    let error = forged_manifest(|manifest| manifest.files[1].name = "../../secret".into());
    assert!(matches!(error, OutsideDirectory { .. }), "{error}");
    let error = forged_manifest(|manifest| manifest.files[1].name = "config.json".into());
    assert!(matches!(error, Duplicate { .. }), "{error}");
    let error = forged_manifest(|manifest| manifest.format_version = 2);
    assert!(matches!(error, Version { want: 1, got: 2, .. }), "{error}");
}

#[test]
fn a_header_that_repeats_a_name_is_refused() {
    let error = forged("model.safetensors", |bytes| {
        let entry = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let text = format!(r#"{{"a":{entry},"a":{entry}}}"#);
        *bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 4]].concat();
    });
    assert!(matches!(&error, CheckpointError::Duplicate { name, .. } if name == "a"), "{error}");
}

#[test]
fn counts_and_names_above_their_caps_are_refused() {
    let header = |text: String| {
        forged("model.safetensors", |bytes| {
            *bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        })
    };
    let entry = r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#;
    let error = header(format!(r#"{{"{}":{entry}}}"#, "x".repeat(513)));
    assert!(
        matches!(error, CheckpointError::Limit { what: "bytes of a tensor's name", got: 513, .. }),
        "{error}"
    );
    let entries: Vec<String> = (0..=100_000).map(|at| format!(r#""{at}":{entry}"#)).collect();
    let error = header(format!("{{{}}}", entries.join(",")));
    assert!(matches!(error, CheckpointError::Limit { what: "tensors", got: 100_001, .. }), "{error}");
    let error = header(r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#.into());
    assert!(
        matches!(&error, CheckpointError::Entry { want, .. } if want == "at most 8 dimensions"),
        "{error}"
    );
}

/// The limits themselves are allowed: each of these headers fails for another reason.
#[test]
fn counts_and_sizes_at_their_limits_are_accepted() {
    let header = |text: &str, prefix: usize| {
        let error = forged("model.safetensors", |bytes| {
            *bytes = [&(prefix as u64).to_le_bytes(), text.as_bytes()].concat();
        });
        error.to_string()
    };
    assert!(header("", 0).contains("no text"));
    assert!(header("[]", 2).contains("a list instead of an object of tensors"));
    assert!(header("{}", 3).contains("end of the header: expected 11 bytes, found 10"));
    let longest = format!("{{{}}}", " ".repeat((16 << 20) - 2));
    assert!(header(&longest, longest.len()).contains("is missing"));
    let entry = r#"{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#;
    let named = format!(r#"{{"{}":{entry}}}"#, "x".repeat(512));
    assert!(header(&named, named.len()).contains("expected 4 bytes of data, found 0"));
    let entries: Vec<String> = (0..100_000).map(|at| format!(r#""{at}":{entry}"#)).collect();
    let most = format!("{{{}}}", entries.join(","));
    assert!(header(&most, most.len()).contains("expected 4 bytes of data, found 0"));
}

#[test]
fn a_checkpoint_at_the_limits_is_saved_and_loaded() {
    let names: Vec<String> = (0..100_000).map(|at| format!("{at:0>5}")).collect();
    let mut tensors: Vec<Owned> = names.into_iter().map(|name| (name, vec![1], vec![1.0])).collect();
    let save = |tensors: &[Owned], file: &str| {
        let (fs, model) = (SimulatedFs::default(), views(tensors));
        let done = Sample::small(1, 0).with(|snapshot| {
            let files: &[(&str, &[u8])] = &[(file, b"")];
            opened(&fs).save(&CheckpointContents { model: &model, files, trainer: None, ..*snapshot })
        });
        done.map(|saved| {
            newest(&fs).unwrap().loaded.tensors.len() == tensors.len() && saved.not_pruned.is_none()
        })
    };
    assert!(save(&tensors, &"x".repeat(255)).unwrap());
    let error = save(&tensors[..1], &"x".repeat(256)).unwrap_err().to_string();
    assert!(error.contains("unique plain file names"), "{error}");
    tensors.push(("x".repeat(512), vec![1], vec![1.0]));
    let error = save(&tensors, "x").unwrap_err().to_string();
    assert!(error.contains("at most 100,000, found 100001"), "{error}");
    assert!(save(&tensors[99_999..], "x").unwrap());
}

#[test]
fn a_header_may_be_as_long_as_its_limit() {
    let encode = |length: usize| {
        let name = "x".repeat(length);
        let tensor = TensorView { name: &name, shape: &[1], data: &[1.0] };
        super::super::header::encode(&[tensor], crate::quant::Quant::F32).map(|bytes| bytes.len())
    };
    let others = encode(8).unwrap() - 8;
    let longest = (16 << 20) + 8 - others;
    assert_eq!(encode(longest).unwrap(), (16 << 20) + 8);
    assert!(encode(longest + 8).is_err());
}

#[test]
fn a_file_may_be_as_long_as_its_limit() {
    let (fs, dir) = saved(&Sample::small(1, 0));
    let (path, length) = (dir.join("config.json"), bytes(&fs, &dir.join("config.json")).len());
    let read = |max: usize| super::super::load::read_small(&fs, &path, "a file", max as u64);
    assert_eq!(read(length).unwrap().len(), length);
    assert!(matches!(read(length - 1), Err(CheckpointError::Limit { .. })));
}

#[test]
fn a_checkpoint_opened_for_its_weights_is_verified_too() {
    let (fs, dir) = saved(&Sample::small(1, 0));
    assert_eq!(load_weights(&fs, &dir, &LoadOptions::default()).unwrap().tensors.len(), 2);
    let last_bit = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    fs.damage(&dir.join("model.safetensors"), last_bit).unwrap();
    let error = load_weights(&fs, &dir, &LoadOptions::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::Checksum { tensor: Some(_), .. }), "{error}");
}

#[test]
fn a_control_record_is_decoded_completely_or_not_at_all() {
    let file = Path::new("control.bin");
    let decode = |bytes: &[u8]| {
        let (length, crc) = (bytes.len() as u64, crc32c::crc32c(bytes));
        control::decode(file, &Verified::check(file, bytes.to_vec(), length, crc).unwrap())
    };
    let good = control::encode(&Sample::small(1, 0).control).unwrap();
    let longer = [&good[..], &[0]].concat();
    for bad in [&good[..3], &good[..good.len() - 1], &longer] {
        assert!(matches!(decode(bad), Err(CheckpointError::Malformed { .. })));
    }
    let mut other = good.clone();
    other[0] = 2;
    assert!(matches!(decode(&other), Err(CheckpointError::Version { want: 1, got: 2, .. })));
    // A length of 2^64 - 1 for the optimizer's name: the file that makes the default configuration abort.
    let mut huge = good.clone();
    let at = good.windows(5).position(|five| five == b"adamw").unwrap() - 8;
    huge[at..at + 8].fill(0xff);
    assert!(matches!(decode(&huge), Err(CheckpointError::Malformed { .. })));
    let error = Verified::check(file, good.clone(), 1, 0).err().unwrap();
    assert!(matches!(error, CheckpointError::Length { .. }), "{error}");
    let error = Verified::check(file, good.clone(), good.len() as u64, 0).err().unwrap();
    assert!(matches!(error, CheckpointError::Checksum { .. }), "{error}");
}

#[test]
fn a_control_record_that_is_encoded_can_be_decoded() {
    let file = Path::new("control.bin");
    let mut control = Sample::small(1, 0).control;
    let rest = control::encode(&control).unwrap().len() - control.optimizer.len();
    control.optimizer = "a".repeat((1 << 20) - 1 - rest);
    let longest = control::encode(&control).unwrap();
    let (length, crc) = (longest.len() as u64, crc32c::crc32c(&longest));
    let verified = Verified::check(file, longest, length, crc).unwrap();
    assert_eq!(control::decode(file, &verified).unwrap(), control);
    control.optimizer.push('a');
    let error = control::encode(&control).unwrap_err().to_string();
    assert!(error.contains("less than 1 MiB"), "{error}");
}

#[test]
fn a_directory_instead_of_a_file_is_refused() {
    let (fs, dir) = saved(&Sample::small(1, 0));
    let path = dir.join("config.json");
    fs.remove_file(&path).unwrap();
    fs.create_dir(&path).unwrap();
    let error = load(&fs, &dir, &LoadOptions::default()).unwrap_err();
    assert!(matches!(&error, CheckpointError::NotAFile { path: found } if *found == path), "{error}");
}

#[test]
fn shapes_are_checked_before_tensors_are_read() {
    let (fs, dir) = saved(&Sample::small(1, 0));
    let shapes = |file: &Path, config: &Value, found: &[TensorInfo]| {
        assert_eq!((config["hidden_size"].as_u64(), found.len()), (Some(3), 2));
        require_shapes(file, &[("model.norm.weight".into(), vec![4])], TensorInfo::shapes(found))
    };
    let options = LoadOptions { shapes: Some(&shapes), ..LoadOptions::default() };
    let error = load(&fs, &dir, &options).unwrap_err();
    assert!(matches!(error, CheckpointError::Shape { .. }), "{error}");
}

#[test]
fn a_run_without_checkpoints_is_reported_as_such() {
    let error = newest(&SimulatedFs::default()).unwrap_err();
    assert!(matches!(error, CheckpointError::Missing { .. }), "{error}");
}

/// Loads a checkpoint without its trainer's state.
fn without_the_trainer(fs: &SimulatedFs, dir: &Path) -> Result<LoadedCheckpoint> {
    load(fs, dir, &LoadOptions { trainer: TrainerPart::Verify, ..LoadOptions::default() })
}

#[test]
fn a_trainers_state_that_is_not_kept_is_verified() {
    let sample = Sample::small(1, 0);
    let (fs, dir) = saved(&sample);
    let loaded = without_the_trainer(&fs, &dir).unwrap();
    assert!(loaded.trainer.is_none() && same(&sample.model, &loaded.tensors));
    for name in ["trainer/optimizer.safetensors", "trainer/control.bin"] {
        let fs = fs.fork();
        fs.damage(&dir.join(name), |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
        let error = without_the_trainer(&fs, &dir).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Checksum { .. }) && error.to_string().contains(name),
            "{error}"
        );
    }
}

#[test]
fn a_nan_in_the_last_piece_is_counted_from_the_first() {
    let elements = 16411 * 3;
    let (fs, dir) = saved(&Sample::of(1, 0, &[("a", &[16411, 3])]));
    let path = dir.join("trainer/optimizer.safetensors");
    let nan = |bytes: &mut Vec<u8>| {
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    fs.damage(&path, nan).unwrap();
    let changed = bytes(&fs, &path);
    let kept = forge(&fs, &dir, |manifest| {
        let record = manifest.files.iter_mut().find(|record| path.ends_with(&record.name)).unwrap();
        record.crc32c = crc32c::crc32c(&changed);
        record.tensors.last_mut().unwrap().crc32c = crc32c::crc32c(&changed[changed.len() - 4 * elements..]);
    });
    let verified = without_the_trainer(&fs, &dir).unwrap_err();
    for error in [kept, verified] {
        let want = format!("optimizer.safetensors: tensor v.a: element {} is NaN", elements - 1);
        assert!(error.to_string().contains(&want), "{error}");
    }
}
