//! Constructors, dtypes, copies and the errors of tensors.
use super::*;
use crate::{ThreadSchedule, testing};

/// What the constructors return for a shape.
fn constructed(device: &Device, shape: &[usize], dtype: Dtype) -> [Result<Tensor>; 3] {
    let all = Tensor::all_zeros(device, &[&[2], shape]).map(|mut all| all.remove(1));
    [Tensor::zeros(device, shape, dtype), Tensor::unspecified(device, shape), all]
}

#[test]
fn a_tensor_without_memory_is_an_error() {
    for device in [Device::cpu(), Device::reference()] {
        for dtype in [Dtype::F32, Dtype::BF16] {
            // more than the address space, because systems promise more memory than they have
            for error in constructed(&device, &[1 << 20, 1 << 30], dtype) {
                let error = error.unwrap_err().to_string();
                assert!(error.starts_with("out of memory: cannot allocate"), "{device}: {error}");
            }
            for shape in [&[usize::MAX, 2][..], &[1 << 33, 1 << 33], &[1 << 61]] {
                let want = format!("Tensor: expected a shape that memory can hold, found {shape:?}");
                for error in constructed(&device, shape, dtype) {
                    assert_eq!(error.unwrap_err().to_string(), want, "{device}");
                }
            }
            assert!(
                constructed(&device, &[3], dtype).iter().all(Result::is_ok),
                "the device is still usable"
            );
        }
    }
}

/// The error is that of the size, not of the memory that such a tensor needs.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_refuses_a_tensor_of_more_elements_than_its_kernels_count() {
    let device = testing::emulated(ThreadSchedule::Forward);
    for shape in [&[1 << 32][..], &[1 << 16, 1 << 16], &[3, 1 << 31]] {
        let want = format!(
            "Tensor on a GPU: expected fewer than 2^32 elements, the limit of the kernels' counters, found {shape:?}"
        );
        for dtype in [Dtype::F32, Dtype::BF16] {
            let error = Tensor::zeros(&device, shape, dtype).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error:?}");
            assert_eq!(error.to_string(), want);
        }
    }
    assert_eq!(elements_on_gpu(&[(1 << 32) - 1]), Ok(0xffff_ffff));
}

#[test]
#[cfg(feature = "faults")]
fn a_number_of_elements_that_wraps_is_found() {
    for device in [Device::cpu(), Device::reference()] {
        let zeros = || Tensor::zeros(&device, &[1 << 33, 1 << 33], Dtype::F32);
        assert!(zeros().is_err(), "{device}");
        assert!(faults::with(Fault::NumberOfElementsWraps, zeros).is_ok(), "{device}");
    }
}

#[test]
fn a_shape_with_another_number_of_elements_is_an_error() {
    let dev = Device::cpu();
    let err = Tensor::new(&dev, &[2, 3], vec![0f32; 5]).unwrap_err();
    assert_eq!(
        err.to_string(),
        "Tensor::new: expected as many values as the shape holds, found [[2, 3], [5]]"
    );
    assert!(Tensor::new(&dev, &[usize::MAX, 2], vec![0f32; 5]).is_err());
}

#[test]
fn reading_another_dtype_is_an_error() {
    let t = Tensor::zeros(&Device::cpu(), &[2], Dtype::BF16).unwrap();
    assert_eq!(t.data::<f32>().unwrap_err().to_string(), "Tensor::data: expected f32, found bf16");
}

#[test]
fn a_write_does_not_change_a_clone() {
    let a = Tensor::new(&Device::cpu(), &[2], vec![1f32, 2.0]).unwrap();
    let mut b = a.clone();
    b.data_mut::<f32>().unwrap()[0] = 9.0;
    assert_eq!(a.data::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_error_of_an_operand_names_its_dtype_or_its_device() {
    let [device, other] = [1, 2].map(|seed| testing::emulated(ThreadSchedule::Random(seed)));
    let Device::Gpu(gpu) = &device else { panic!("{device}") };
    let zeros = |device: &Device, dtype| Tensor::zeros(device, &[2, 3], dtype).unwrap();
    let error = |x: &Tensor| x.at(gpu, Dtype::F32).unwrap_err();
    let dtype = error(&zeros(&device, Dtype::BF16));
    assert!(matches!(dtype, Error::Dtype { .. }), "{dtype:?}");
    assert_eq!(dtype.to_string(), "operand on a GPU: expected f32, found bf16");
    for elsewhere in [Device::cpu(), other] {
        let found = error(&zeros(&elsewhere, Dtype::F32));
        assert!(matches!(found, Error::Device { .. }), "{found:?}");
        let want = format!("expected an operand in f32 on {device}, found f32 on {elsewhere}");
        assert_eq!(found.to_string(), want);
    }
}

#[test]
fn debug_text_has_the_first_values_and_no_free_memory() {
    let device = Device::cpu();
    drop(Tensor::zeros(&device, &[1000], Dtype::F32).unwrap());
    let tensor = |n: u32| Tensor::new(&device, &[n as usize], (0..n).collect::<Vec<u32>>()).unwrap();
    let text = format!("{:?}", tensor(2));
    assert!(text.contains("[0, 1]") && text.len() < 200, "{text}");
    let text = format!("{:?}", tensor(9));
    assert!(text.contains("[0, 1, 2, 3, 4, 5, 6, 7, ..]"), "{text}");
}
