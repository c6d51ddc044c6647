// Kernels of common programs of 32 channels at fp32 whose analysis keeps many modes. With 64 channels an analysis of its own is
// faster.
#include "tile_kernels.cuh"

namespace turbofno {
namespace {

template <uint64_t... PROGRAMS> TileKernel kernel_of_any(const TileArguments &a) {
    TileKernel kernel = nullptr;
    ((serves(PROGRAMS, a.tile) && (kernel = common_kernel<PrecisionFp32, 4, kManyColumns, PROGRAMS>(a))) || ...);
    return kernel;
}

} // namespace

// Those programs of kPrograms that end with an analysis.
TileKernel tile_many_modes(const TileArguments &a) { return kernel_of_any<kFirstLayer, kLayer, kBlock, kAfterNorm, kLifting>(a); }

} // namespace turbofno
