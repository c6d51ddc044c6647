// The launch of a tile program.
#include <cstring>

#include "l2_policy.h"
#include "pdl.cuh"
#include "partial_sums.h"
#include "tile.h"

namespace turbofno {
namespace {

// Bytes of a field that streams. Programs of larger fields are faster without a policy.
constexpr int64_t kMostStreamed = int64_t(192) << 20;

TileKernel kernel_of(const TileArguments &a) {
    if (a.common && is_plain_of_20(a.tile)) return tile_20_channels(a);
    if (a.plan.columns > kWgmmaColumns) return a.common ? tile_many_modes(a) : nullptr;
    switch (a.tile.precision) {
    case TURBOFNO_TF32: return tile_tf32(a);
    case TURBOFNO_BF16: return tile_bf16(a);
    default: return tile_fp32(a);
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_tile_program(const turbofno_tile *tile, const turbofno_tile_plan *prepared,
                                                 CUstream_st *stream) {
    using namespace turbofno;
    TileArguments a{};
    a.tile = *tile;
    std::memcpy(&a.plan, prepared->opaque, sizeof a.plan);
    if (a.plan.warps == 0) return TURBOFNO_UNSUPPORTED;
    a.common = a.plan.common;
    for (int i = 0; i < tile->steps; ++i) {
        if (tile->step[i].kind == TURBOFNO_STORE && tile->step[i].channel_first) a.common = false;
    }
    // other kernels stage spectra while y may be staged in the same place
    if (a.plan.common && !a.common) a.plan.copied_at = -1;
    // the kernel for any networks has registers for fewer warps
    if (a.plan.warps > max_warps(a.plan.fragments, a.plan.wide, a.plan.columns, a.common)) return TURBOFNO_UNSUPPORTED;
    if (tile->x_scales != nullptr && tile->precision != TURBOFNO_FP32) return TURBOFNO_UNSUPPORTED;
    const bool segmented = prepared->segment_points < tile->points;
    const bool missing = (tile->modes > 0 && (tile->mixed == nullptr || tile->synthesis == nullptr)) ||
                         (tile->next_modes > 0 && (tile->spectra == nullptr || tile->analysis == nullptr)) ||
                         (segmented && tile->modes > 0 && tile->synthesis_phases == nullptr) ||
                         (segmented && tile->next_modes > 0 && tile->analysis_phases == nullptr) ||
                         (a.plan.workspace_bytes > 0 && tile->workspace == nullptr) ||
                         (a.common && a.plan.stores_split && tile->scales == nullptr);
    if (missing) return TURBOFNO_NULL_POINTER;
    const bool scaled = tile->precision != TURBOFNO_BF16;
    int exponent = 13; // the tables' scales: SYNTHESIS_EXPONENT, analysis_exponent of _cuda_tables.py
    a.synthesis_inv_scale = scaled ? 1.0f / float(1 << exponent) : 1.0f;
    while ((1 << (exponent - 13)) < tile->points) ++exponent;
    a.analysis_inv_scale = scaled ? 1.0f / float(int64_t(1) << exponent) : 1.0f;
    const int64_t bytes = tile->batch * tile->outer * tile->points * tile->channels * (scaled ? 4 : 2);
    const bool streams = bytes <= kMostStreamed && a.plan.channel_tiles == 1; // else several blocks read a point
    a.fields_policy = streams ? kEvictFirst : kEvictNormal;
    a.next = a.plan.splits > 1 ? static_cast<float *>(tile->workspace) : tile->spectra;
    const TileKernel kernel = kernel_of(a);
    if (kernel == nullptr) return TURBOFNO_UNSUPPORTED;
    allow_shared_memory(kernel, tile->shared_bytes);
    const turbofno_status status =
        launch_pdl(kernel, dim3(unsigned(a.plan.blocks), unsigned(a.plan.channel_tiles)), 32 * a.plan.warps,
                   size_t(a.plan.shared_bytes), stream, a);
    if (status != TURBOFNO_OK || tile->next_modes == 0 || a.plan.splits == 1) return status;
    const int64_t count = tile->batch * tile->outer * tile->channels * 2 * tile->next_modes;
    return add_parts(tile->spectra, a.next, count, a.plan.splits, stream);
}
