#include "tile_kernels.cuh"

namespace turbofno {

TileKernel tile_bf16(const TileArguments &a) { return kernel_of<PrecisionBf16>(a); }

} // namespace turbofno
