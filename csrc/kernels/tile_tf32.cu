#include "tile_program.cuh"

namespace turbofno {

TileKernel tile_tf32(const TilePlan &plan) { return kernel_of<Tf32>(plan); }

} // namespace turbofno
