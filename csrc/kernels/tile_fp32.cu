#include "tile_kernels.cuh"

namespace turbofno {

TileKernel tile_fp32(const TileArguments &a) { return kernel_of<PrecisionFp32>(a); }

} // namespace turbofno
