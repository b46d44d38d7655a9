//! The sum of all ranks' vectors, in the order of the ranks, so that every rank gets the same bits.
//!
//! Floating-point addition depends on its order. The sum here is always ((rank 0 + rank 1) +
//! rank 2) + …, whoever computes it and whichever way the parts came.

/// Adds `part`, the next rank's vector, to the sum of the ranks before it. Bytes of little-endian
/// 32-bit floats; what is beyond the shorter one stays.
pub fn add_next(sum: &mut [u8], part: &[u8]) {
    let (sums, _) = sum.as_chunks_mut::<4>();
    let (parts, _) = part.as_chunks::<4>();
    for (sum, part) in sums.iter_mut().zip(parts) {
        *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*part)).to_le_bytes();
    }
}

/// Puts `before`, the sum of the ranks before this one, under the own vector: what a rank of a ring
/// does. Of a number that is cut off at the end, the first rank's bytes stay, as in
/// [`sum_in_order`].
pub fn add_before(own: &mut [u8], before: &[u8]) {
    let (owns, own_rest) = own.as_chunks_mut::<4>();
    let (befores, before_rest) = before.as_chunks::<4>();
    for (own, before) in owns.iter_mut().zip(befores) {
        *own = (f32::from_le_bytes(*before) + f32::from_le_bytes(*own)).to_le_bytes();
    }
    for (own, before) in own_rest.iter_mut().zip(before_rest) {
        *own = *before;
    }
}

/// The whole sum: `parts` are the vectors of all ranks, in order; the first is copied, the others
/// added.
pub fn sum_in_order<'a>(sum: &mut [u8], parts: impl IntoIterator<Item = &'a [u8]>) {
    for (index, part) in parts.into_iter().enumerate() {
        if index == 0 {
            let length = sum.len().min(part.len());
            if let (Some(to), Some(from)) = (sum.get_mut(..length), part.get(..length)) {
                to.copy_from_slice(from);
            }
        } else {
            add_next(sum, part);
        }
    }
}
