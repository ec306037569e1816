//! Messages of f32 values between processes.

/// Appends values to a message, in the byte order of this machine: all processes run on machines of one kind.
pub(super) fn append(message: &mut Vec<u8>, values: &[f32]) {
    message.extend_from_slice(bytemuck::cast_slice(values));
}

/// The values of a message that are not read yet.
pub(super) struct Values<'a>(pub(super) &'a [u8]);

impl Values<'_> {
    /// Reads as many values as `to` holds.
    pub(super) fn read_into(&mut self, to: &mut [f32]) {
        let bytes = self.0.split_off(..4 * to.len()).expect("every process sends the length of its slices");
        bytemuck::cast_slice_mut(to).copy_from_slice(bytes);
    }

    /// Reads all values.
    pub(super) fn rest(mut self) -> Vec<f32> {
        let mut all = vec![0f32; self.0.len() / 4];
        self.read_into(&mut all);
        all
    }
}
