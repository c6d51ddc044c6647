// Fluxes of div(a grad u) on a grid, each row of them projected on a few functions of the last axis as it is computed.
//
// The flux through the face between two points is (difference of u) (sum of a), u = 0 around the grid. Fluxes along the rows
// and across them are projected on 16 functions each, whose tables have zeros where there are fewer.
#include "../plan/ceil_div.h"
#include "launch.h"
#include "pdl.cuh"

namespace turbofno {
namespace {

constexpr int kThreads = 128, kRows = 2; // of a warp
constexpr int kModes = TURBOFNO_FLUX_MODES;
constexpr int kSums = kRows * 2 * kModes; // of a warp: [row][across, along][mode]

// The sum of each of 2 N values over the lanes; lane l ends with those of index 2 l and 2 l + 1 in the first two.
template <int N> __device__ __forceinline__ void sum_over_lanes(float (&values)[kSums], int lane) {
    const bool upper = lane & (N / 2);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const float kept = upper ? values[i + N] : values[i], sent = upper ? values[i] : values[i + N];
        values[i] = kept + __shfl_xor_sync(0xffffffffu, sent, N / 2);
    }
    if constexpr (N > 2) sum_over_lanes<N / 2>(values, lane);
}

// A warp takes the faces below two rows, and those along them.
__global__ void __launch_bounds__(kThreads) project_fluxes(const turbofno_fluxes f) {
    const int lane = int(threadIdx.x) % 32, pairs = ceil_div(f.rows, kRows);
    const int64_t warp = int64_t(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32, field = warp / pairs;
    if (field >= f.fields) return;
    const int first = int(warp % pairs) * kRows, rows = f.rows, points = f.points;
    pdl_wait();
    const float *const a = f.a + field * f.a_pitch, *const u = f.u + field * f.u_pitch;
    float sums[kSums] = {};
    for (int j = lane; j < points; j += 32) {
        const bool inside = j > 0 && j < points - 1, has_next = j < points - 1, next_inside = j + 1 < points - 1;
        float a_here[kRows + 1], u_here[kRows + 1], across[kRows], along[kRows];
#pragma unroll
        for (int r = 0; r <= kRows; ++r) {
            const bool inner_row = first + r > 0 && first + r < rows - 1;
            const int64_t at = int64_t(min(first + r, rows - 1)) * points + j;
            a_here[r] = a[at];
            u_here[r] = inner_row && inside ? u[at] : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const bool faces = first + r > 0 && first + r < rows - 1 && has_next;
            const int64_t next = int64_t(first + r) * points + j + 1;
            const float a_next = faces ? a[next] : 0.0f, u_next = faces && next_inside ? u[next] : 0.0f;
            along[r] = faces ? (u_next - u_here[r]) * (a_here[r] + a_next) : 0.0f;
            across[r] = inside && first + r < rows - 1 ? (u_here[r + 1] - u_here[r]) * (a_here[r] + a_here[r + 1]) : 0.0f;
        }
#pragma unroll
        for (int m = 0; m < kModes; ++m) {
            const float of_across = f.across[m * points + j], of_along = f.along[m * points + j];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                float *const sum = sums + r * 2 * kModes + m;
                sum[0] = fmaf(across[r], of_across, sum[0]);
                sum[kModes] = fmaf(along[r], of_along, sum[kModes]);
            }
        }
    }
    sum_over_lanes<kSums / 2>(sums, lane);
    const int row = first + lane / 16, mode = 2 * lane % kModes;
    const bool is_along = lane / 8 % 2;
    if (row < rows) {
        float *const out = f.out + ((field * 2 + is_along) * rows + row) * kModes + mode;
        *reinterpret_cast<float2 *>(out) = make_float2(sums[0], sums[1]);
    }
    pdl_trigger();
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_project_fluxes(const turbofno_fluxes *f, CUstream_st *stream) {
    using namespace turbofno;
    const int64_t blocks = ceil_div(f->fields * ceil_div(f->rows, kRows), int64_t(kThreads / 32));
    if (f->rows < 3 || f->points < 3 || f->fields < 1 || blocks > 0x7fffffff) return TURBOFNO_UNSUPPORTED;
    if (f->a == nullptr || f->u == nullptr || f->out == nullptr) return TURBOFNO_NULL_POINTER;
    if (f->across == nullptr || f->along == nullptr) return TURBOFNO_NULL_POINTER;
    return launch_pdl(project_fluxes, dim3(unsigned(blocks)), kThreads, 0, stream, *f);
}
