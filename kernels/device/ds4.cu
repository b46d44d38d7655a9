// All kernels as one module.
#include "add.cu"
#include "checksum.cu"
#include "fill.cu"
#include "pattern.cu"
