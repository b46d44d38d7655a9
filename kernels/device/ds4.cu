// All kernels as one module.
#include "add.cu"
#include "checksum.cu"
#include "fill.cu"
#include "gate.cu"
#include "pattern.cu"
