#include "tile_program.cuh"

namespace turbofno {

TileKernel tile_bf16(const TilePlan &plan) { return kernel_of<Bf16>(plan); }

} // namespace turbofno
