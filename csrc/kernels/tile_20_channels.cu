// Kernels of kPlainPrograms with kPlainChannels. They compute 32 channels, of which 12 are zero, but read and write 20.
#include "tile_kernels.cuh"

namespace turbofno {
namespace {

template <typename P, int COLUMNS, size_t... I> TileKernel plain_kernel(const TileArguments &a, std::index_sequence<I...>) {
    return common_kernel_of<P, 4, COLUMNS, kPlainChannels, kPlainPrograms[I]...>(a);
}

template <typename P, int COLUMNS> TileKernel plain_kernel(const TileArguments &a) {
    return plain_kernel<P, COLUMNS>(a, std::make_index_sequence<std::size(kPlainPrograms)>());
}

} // namespace

TileKernel tile_20_channels(const TileArguments &a) {
    switch (a.tile.precision) {
    case TURBOFNO_TF32: return plain_kernel<PrecisionTf32, 0>(a);
    case TURBOFNO_BF16: return plain_kernel<PrecisionBf16, 0>(a);
    default: break;
    }
    switch (a.plan.columns) {
    case 0: return plain_kernel<PrecisionFp32, 0>(a);
    case kWgmmaColumns: return plain_kernel<PrecisionFp32, kWgmmaColumns>(a);
    default: // those that end with an analysis
        return common_kernel_of<PrecisionFp32, 4, kManyColumns, kPlainChannels, kFirstLayer, kLayer>(a);
    }
}

} // namespace turbofno
