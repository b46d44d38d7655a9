//! Adding one vector to another.

/// Adds `other` to `sum`, element by element, in IEEE 754 single precision with one rounding each.
///
/// The shorter length counts. One addition has one right result, so that ranks which add in the
/// same order agree bit for bit.
pub fn add_f32(sum: &mut [f32], other: &[f32]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_added_with_one_rounding() {
        let mut sum = [1.0, f32::MAX, 16_777_216.0, 9.0];
        add_f32(&mut sum, &[0.5, f32::MAX, 1.0]);
        assert_eq!(sum, [1.5, f32::INFINITY, 16_777_216.0, 9.0]);
    }
}
