#include "tile_kernels.cuh"

namespace turbofno {

TileKernel tile_tf32(const TileArguments &a) { return kernel_of<PrecisionTf32>(a); }

} // namespace turbofno
