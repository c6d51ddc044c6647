#include "tile_program.cuh"

namespace turbofno {

TileKernel tile_fp32(const TilePlan &plan) { return kernel_of<Fp32>(plan); }

} // namespace turbofno
