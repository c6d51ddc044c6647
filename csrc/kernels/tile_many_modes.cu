// Kernels of common programs of 32 channels at fp32 whose analysis keeps many modes. With 64 channels an analysis of its own is
// faster.
#include "tile_kernels.cuh"

namespace turbofno {

// Those programs of kPrograms that end with an analysis.
TileKernel tile_many_modes(const TileArguments &a) {
    return common_kernel_of<PrecisionFp32, 4, kManyColumns, 32, kFirstLayer, kLayer, kBlock, kAfterNorm, kLifting>(a);
}

} // namespace turbofno
