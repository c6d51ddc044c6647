// The kept modes of the last axis: a truncated DFT of every row, one real matrix product
//     spectra[row, :] = x[row, :] . table[points, 2 * modes]
//
// A warp takes kRows rows, chunk by chunk, straight from global memory into the registers that multiply them: its next
// chunk is on the way while the present one is multiplied. Warps are independent. Few long rows are cut into splits,
// whose sums partial_sums.cu adds.
#include <algorithm>

#include "partial_sums.h"
#include "row_analysis.cuh"
#include "row_quads.cuh"

namespace turbofno {
namespace {

struct Arguments {
    const void *x;
    const uint4 *table;
    float *sums; // spectra, or [splits] of them
    int64_t rows;
    float table_back;
    int points, columns, splits, split_chunks;
};

// Where a warp is: `tile` of kRows rows, `split` of these, chunk.
struct Place {
    int64_t tile;
    int split, chunk;
};

template <bool WHOLE, typename Field>
__device__ __forceinline__ void load(Values &values, const Arguments &a, const Place &at) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) { // rows g and g + 8 of each tile
        const int64_t row = at.tile * kRows + g + 8 * part;
        const int point = at.chunk * kChunk + 4 * t;
        const Field *from = static_cast<const Field *>(a.x) + row * a.points + point;
        TileValues &to = values[part / 2];
        const int i = part % 2 * 2;
#pragma unroll
        for (int b = 0; b < kPairs; ++b) {
            const auto quad = load_quad<WHOLE>(from + 16 * b, row < a.rows ? a.points - point - 16 * b : 0);
            if constexpr (sizeof(Field) == 4) {
                to[2 * b][i] = quad.x, to[2 * b][i + 1] = quad.y;
                to[2 * b + 1][i] = quad.z, to[2 * b + 1][i + 1] = quad.w;
            } else {
                to[2 * b][i] = __uint_as_float(quad.x << 16), to[2 * b][i + 1] = __uint_as_float(quad.x & 0xffff0000u);
                to[2 * b + 1][i] = __uint_as_float(quad.y << 16);
                to[2 * b + 1][i + 1] = __uint_as_float(quad.y & 0xffff0000u);
            }
        }
    }
}

template <typename P, bool WHOLE>
__global__ void __launch_bounds__(32 * kAnalysisWarps, kWarps / kAnalysisWarps) analyze_rows(const Arguments a) {
    extern __shared__ float4 shared[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const int column_pairs = ceil_div(a.columns, 16);
    float4 *sums = shared + warp * kTiles * column_pairs * 64;
    const int chunks = ceil_div(a.points, kChunk);
    const int64_t tiles = ceil_div(a.rows, int64_t(kRows));
    const int64_t stride = int64_t(gridDim.x) * warps;
    int64_t unit = int64_t(blockIdx.x) * warps + warp;
    if (unit >= tiles * a.splits) return;

    const auto first = [&](int64_t of) {
        const int64_t tile = of / a.splits;
        const int split = int(of - tile * a.splits);
        return Place{tile, split, split * a.split_chunks};
    };
    Place at = first(unit);
    Values values;
    load<WHOLE, typename P::Field>(values, a, at);
    clear_analysis(sums, column_pairs);
    for (;;) {
        Place next = at;
        const bool ends = ++next.chunk == min(chunks, (at.split + 1) * a.split_chunks);
        if (ends) next = first(unit + stride);
        const bool goes_on = next.tile < tiles;
        Left left[kTiles][kPairs];
        float back[kTiles][2];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            split_rows<P>(values[m], left[m], back[m]);
            back[m][0] *= a.table_back, back[m][1] *= a.table_back;
        }
        if (goes_on) load<WHOLE, typename P::Field>(values, a, next);

        const uint4 *table = a.table + int64_t(at.chunk) * column_pairs * (kPairs * kRightWords<P>);
        add_analysis<P, false, false>(sums, left, back, table, column_pairs);
        if (ends) {
            const int64_t row = at.tile * kRows;
            const int rows = int(min(int64_t(kRows), a.rows - row));
            store_analysis(a.sums + (at.split * a.rows + row) * a.columns, a.columns, rows, a.columns, sums);
            clear_analysis(sums, column_pairs);
            unit += stride;
        }
        if (!goes_on) return;
        at = next;
    }
}

template <typename P> turbofno_status launch(const turbofno_analysis &analysis, cudaStream_t stream) {
    const AnalysisPlan p = plan(analysis);
    Arguments a{};
    a.x = analysis.x;
    a.rows = analysis.rows;
    a.points = analysis.points;
    a.columns = 2 * analysis.modes;
    a.splits = p.splits;
    a.split_chunks = p.split_chunks;
    a.sums = p.splits > 1 ? static_cast<float *>(analysis.workspace) : analysis.spectra;
    a.table = row_table<P>(analysis.table, a.points, a.columns, false);
    a.table_back = P::kScaled ? analysis_table_back(a.points) : 1.0f;
    const int64_t units = ceil_div(a.rows, int64_t(kRows)) * p.splits;
    const auto kernel = a.points % 4 == 0 ? analyze_rows<P, true> : analyze_rows<P, false>;
    const int blocks =
        resident_blocks(kernel, 32 * p.warps, p.shared_bytes, kRowsSharedBytes, analysis.multiprocessors);
    kernel<<<unsigned(std::min<int64_t>(blocks, ceil_div(units, int64_t(p.warps)))), 32 * p.warps, p.shared_bytes,
             stream>>>(a);
    const turbofno_status status = launched();
    if (status != TURBOFNO_OK || p.splits == 1) return status;
    return add_parts(analysis.spectra, a.sums, a.rows * a.columns, p.splits, nullptr, 1, 1, stream);
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_analyze_rows(const turbofno_analysis *analysis, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_analysis_unsupported(analysis) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (analysis->x == nullptr || analysis->table == nullptr || analysis->spectra == nullptr ||
        (analysis->workspace == nullptr && turbofno_analysis_workspace_bytes(analysis) > 0)) {
        return TURBOFNO_NULL_POINTER;
    }
    switch (analysis->precision) {
    case TURBOFNO_TF32: return launch<Tf32>(*analysis, stream);
    case TURBOFNO_BF16: return launch<Bf16>(*analysis, stream);
    default: return launch<Fp32>(*analysis, stream);
    }
}
