//! The element types of ggml and how many bytes a block of each takes.

/// Rows of the table: variant, number in the file, printed name, elements per block, bytes per
/// block. Source: `enum ggml_type` and `type_traits` of
/// <https://github.com/ggml-org/ggml/blob/master/src/ggml.c>; 4, 5, 31 to 33 and 36 to 38 were
/// withdrawn and have no size.
macro_rules! tensor_types {
    ($($variant:ident $code:literal $name:literal $elements:literal $bytes:literal;)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(non_camel_case_types, reason = "the names are ggml's")]
        pub enum TensorType {
            $(
                #[doc = concat!("ggml's `", $name, "`.")]
                $variant,
            )*
        }

        impl TensorType {
            /// Every type, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The type that a file writes as `code`, if there is one.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number that stands for it in a file.
            #[must_use]
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$variant => $code,)*
                }
            }

            /// The name as ggml prints it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Elements in a block, and bytes that the block takes.
            #[must_use]
            pub fn block(self) -> (u64, u64) {
                match self {
                    $(Self::$variant => ($elements, $bytes),)*
                }
            }
        }
    };
}

tensor_types! {
    F32 0 "f32" 1 4;
    F16 1 "f16" 1 2;
    Q4_0 2 "q4_0" 32 18;
    Q4_1 3 "q4_1" 32 20;
    Q5_0 6 "q5_0" 32 22;
    Q5_1 7 "q5_1" 32 24;
    Q8_0 8 "q8_0" 32 34;
    Q8_1 9 "q8_1" 32 36;
    Q2_K 10 "q2_K" 256 84;
    Q3_K 11 "q3_K" 256 110;
    Q4_K 12 "q4_K" 256 144;
    Q5_K 13 "q5_K" 256 176;
    Q6_K 14 "q6_K" 256 210;
    Q8_K 15 "q8_K" 256 292;
    IQ2_XXS 16 "iq2_xxs" 256 66;
    IQ2_XS 17 "iq2_xs" 256 74;
    IQ3_XXS 18 "iq3_xxs" 256 98;
    IQ1_S 19 "iq1_s" 256 50;
    IQ4_NL 20 "iq4_nl" 32 18;
    IQ3_S 21 "iq3_s" 256 110;
    IQ2_S 22 "iq2_s" 256 82;
    IQ4_XS 23 "iq4_xs" 256 136;
    I8 24 "i8" 1 1;
    I16 25 "i16" 1 2;
    I32 26 "i32" 1 4;
    I64 27 "i64" 1 8;
    F64 28 "f64" 1 8;
    IQ1_M 29 "iq1_m" 256 56;
    BF16 30 "bf16" 1 2;
    TQ1_0 34 "tq1_0" 256 54;
    TQ2_0 35 "tq2_0" 256 66;
    MXFP4 39 "mxfp4" 32 17;
    NVFP4 40 "nvfp4" 64 36;
    Q1_0 41 "q1_0" 128 18;
    Q2_0 42 "q2_0" 64 18;
}

impl TensorType {
    /// The bytes of `elements` elements, or `None` when they are no whole number of blocks or the
    /// size exceeds a `u64`.
    #[must_use]
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let (block_elements, block_bytes) = self.block();
        if !elements.is_multiple_of(block_elements) {
            return None;
        }
        (elements / block_elements).checked_mul(block_bytes)
    }
}
