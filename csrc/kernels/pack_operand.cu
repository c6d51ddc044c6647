// Packs weights as B operands in the order of warp_mma.cuh: split, scaled and permuted once for all tiles.
#include "../plan/ceil_div.h"
#include "pdl.cuh"
#include "warp_mma.cuh"

namespace turbofno {
namespace {

constexpr int kWarps = 8;
constexpr int kTerms = 32, kColumns = 16; // of a block of words
constexpr int kSteps = 2; // of 16 terms each, one tensor-core product
// Tensor cores truncate when they accumulate, so a product of split operands is too small: on average by this share, measured
// on an H200. A network's products would add up their shares, so weights are made larger by as much.
constexpr float kTruncated = 0x1p-24f, kTruncatedInOneStep = 0.625f * kTruncated;

struct Packing {
    const float *matrix; // [columns][terms]
    uint4 *words; // [chunks of 32 terms][pairs of fragments: 16 columns][kSteps][high, low][lane]
    float *inv_scales; // [chunks][pairs], then zeros up to whole 16 bytes
    int columns, terms, chunks, pairs;
};

// The power of two that scales a largest magnitude to 2^13 .. 2^14, and its inverse. The inverse is NaN if the magnitude is
// not finite, so that all products with these columns are NaN.
struct ColumnScale {
    float factor, inverse;

    __device__ explicit ColumnScale(float magnitude) {
        const int exponent = int(__float_as_uint(magnitude) >> 23);
        const int shift = magnitude > 0.0f ? min(max(140 - exponent, -100), 100) : 0;
        factor = __uint_as_float(unsigned(127 + shift) << 23);
        inverse = __uint_as_float(exponent == 255 ? 0x7fffffffu : unsigned(127 - shift) << 23);
    }
};

// A lane's values of 32 terms and 16 columns: [step][fragment][terms 2t or 2t + 8][one of two neighbouring terms].
using Values = float[kSteps][2][2][2];

__device__ __forceinline__ void load(Values &values, const Packing &a, int chunk, int pair, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int fragment = 0; fragment < 2; ++fragment) {
            const int column = kColumns * pair + 4 * (g / 2) + g % 2 + 2 * fragment;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int at = 0; at < 2; ++at) {
                    const int term = kTerms * chunk + 16 * step + 4 * t + 2 * half + at;
                    const bool inside = column < a.columns && term < a.terms;
                    values[step][fragment][half][at] = inside ? a.matrix[int64_t(column) * a.terms + term] : 0.0f;
                }
            }
        }
    }
}

// The largest magnitude of 16 columns, returned to all threads.
__device__ __forceinline__ float max_of_columns(const Packing &a, int pair, int warp, int lane) {
    __shared__ float of_warps[kWarps];
    float most = 0.0f;
    for (int chunk = warp; chunk < a.chunks; chunk += kWarps) {
        Values values;
        load(values, a, chunk, pair, lane);
#pragma unroll
        for (int i = 0; i < int(sizeof(Values) / sizeof(float)); ++i) most = max_magnitude(most, (&values[0][0][0][0])[i]);
    }
    most = max_over_lanes<1, kLanes>(most);
    if (lane == 0) of_warps[warp] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) most = max_magnitude(most, of_warps[i]);
    return most;
}

// Splits two values, enlarged by `share`, into high and low parts.
template <typename P>
__device__ __forceinline__ void split_enlarged(const float (&values)[2], float scale, float share, uint32_t &high,
                                               uint32_t &low) {
    split<P>(values[0], values[1], scale, high, low);
    if constexpr (P::kSplit) {
        const float2 rounded = __half22float2(*reinterpret_cast<const __half2 *>(&high));
        const float a = values[0] * scale, b = values[1] * scale;
        low = word(__floats2half2_rn(fmaf(a, share, a - rounded.x), fmaf(b, share, b - rounded.y)));
    }
}

// A block packs 16 columns, which share one scale for all terms. Its warps take chunks of 32 terms in turn.
template <typename P> __global__ void __launch_bounds__(kWarps * kLanes) pack_kernel(const Packing a) {
    pdl_wait();
    const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, pair = blockIdx.x;
    const ColumnScale scale(P::kScaled ? max_of_columns(a, pair, warp, lane) : 0.0f);
    for (int chunk = warp; chunk < a.chunks; chunk += kWarps) {
        Values values;
        load(values, a, chunk, pair, lane);
        const int block = chunk * a.pairs + pair;
        const float share = a.terms - kTerms * chunk > kTerms / kSteps ? kTruncated : kTruncatedInOneStep;
        uint4 *to = a.words + int64_t(block) * (kSteps * P::kPlanes * kLanes) + lane;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            uint32_t high[2][2], low[2][2]; // [fragment][terms 2t or 2t + 8]
#pragma unroll
            for (int fragment = 0; fragment < 2; ++fragment) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    split_enlarged<P>(values[step][fragment][half], scale.factor, share, high[fragment][half],
                                      low[fragment][half]);
                }
            }
            to[step * P::kPlanes * kLanes] = uint4{high[0][0], high[0][1], high[1][0], high[1][1]};
            if constexpr (P::kSplit) {
                to[(step * P::kPlanes + 1) * kLanes] = uint4{low[0][0], low[0][1], low[1][0], low[1][1]};
            }
        }
        if (lane == 0) a.inv_scales[block] = scale.inverse;
    }
    const int blocks = a.chunks * a.pairs;
    if (pair == 0 && int(threadIdx.x) < (4 - blocks % 4) % 4) a.inv_scales[blocks + threadIdx.x] = 0.0f;
    // No pdl_trigger: a tile program with settled weights reads this operand before its pdl_wait.
}

int planes(int precision) { return precision == TURBOFNO_FP32 ? PrecisionFp32::kPlanes : 1; }

int blocks(const turbofno_operand &o) { return ceil_div(o.terms, kTerms) * ceil_div(o.padded_columns, kColumns); }

size_t word_bytes(const turbofno_operand &o) {
    return size_t(blocks(o)) * kSteps * size_t(planes(o.precision)) * kLanes * sizeof(uint4);
}

auto kernel_for(int precision) -> void (*)(Packing) {
    switch (precision) {
    case TURBOFNO_TF32: return pack_kernel<PrecisionTf32>;
    case TURBOFNO_BF16: return pack_kernel<PrecisionBf16>;
    default: return pack_kernel<PrecisionFp32>;
    }
}

} // namespace
} // namespace turbofno

extern "C" size_t turbofno_operand_bytes(const turbofno_operand *operand) {
    using namespace turbofno;
    return word_bytes(*operand) + size_t(ceil_div(blocks(*operand), 4)) * sizeof(uint4);
}

extern "C" turbofno_status turbofno_pack_operand(const turbofno_operand *operand, CUstream_st *stream) {
    using namespace turbofno;
    if (operand->matrix == nullptr || operand->operand == nullptr) return TURBOFNO_NULL_POINTER;
    if (operand->columns < 1 || operand->terms < 1 || operand->padded_columns < operand->columns) return TURBOFNO_UNSUPPORTED;
    Packing a{};
    a.matrix = operand->matrix;
    a.words = static_cast<uint4 *>(operand->operand);
    a.inv_scales = reinterpret_cast<float *>(static_cast<char *>(operand->operand) + word_bytes(*operand));
    a.columns = operand->columns;
    a.terms = operand->terms;
    a.chunks = ceil_div(operand->terms, kTerms);
    a.pairs = ceil_div(operand->padded_columns, kColumns);
    return launch_pdl(kernel_for(operand->precision), dim3(unsigned(a.pairs)), kWarps * kLanes, 0, stream, a);
}
