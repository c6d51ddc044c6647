// Inverse DFT along the last axis, pointwise skip, bias and activation: one read of x, one write of y.
//
// For one row (b, h) and all channels this is one real matrix product,
//     y[o, w] = activation([skip | R'][o, :] . [x ; S][:, w] + bias[o])
// R' the row's mixed spectrum, S the synthesis table: the skip is only more terms in the inverse DFT's sum.
//
// A block computes one tile of channels times points of one row.
#include "launch.h"
#include "tile_product.cuh"

namespace turbofno {
namespace {

struct Arguments {
    const float *x, *skip, *bias, *rows, *table;
    float *y;
    int c_in, c_out, h, w, columns, activation;
    int channel_tiles, point_tiles;
};

// Apply f to all sums. The choice of activation stands outside this loop, or every element would carry the code
// of every activation.
template <typename Sums, typename F> __device__ __forceinline__ void apply(Sums &sums, const F &f) {
#pragma unroll
    for (auto &row : sums) {
#pragma unroll
        for (auto &fragment : row) {
#pragma unroll
            for (float &v : fragment) v = f(v);
        }
    }
}

template <typename Sums> __device__ __forceinline__ void activate(Sums &sums, int activation) {
    switch (activation) {
    case TURBOFNO_RELU:
        return apply(sums, [](float v) { return v < 0.0f ? 0.0f : v; }); // NaN stays NaN
    case TURBOFNO_GELU:
        return apply(sums, [](float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f)); });
    case TURBOFNO_GELU_TANH:
        return apply(sums, [](float v) {
            return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
        });
    case TURBOFNO_SILU:
        return apply(sums, [](float v) { return v / (1.0f + expf(-v)); });
    case TURBOFNO_TANH:
        return apply(sums, [](float v) { return tanhf(v); });
    default:
        return;
    }
}

template <typename T> __global__ void __launch_bounds__(T::kThreads, T::kBlocks) fourier_rows(const Arguments a) {
    __shared__ typename T::Shared shared;
    const int part = blockIdx.x % (a.channel_tiles * a.point_tiles);
    const int o0 = part % a.channel_tiles * T::BM;
    const int w0 = part / a.channel_tiles * T::BN;
    const int row = blockIdx.x / (a.channel_tiles * a.point_tiles);
    const int h = row % a.h;
    const int64_t b = row / a.h;
    const int64_t plane = int64_t(a.h) * a.w;
    const float *x = a.x + (b * a.c_in * a.h + h) * a.w;
    const float *rows = a.rows + (b * a.c_out * a.h + h) * a.columns;

    T tile;
    const bool whole_vectors = a.w % 4 == 0;
    if (a.c_in > 0) {
        const int offset = int((b * a.c_in * plane + int64_t(h) * a.w + w0) & 3);
        tile.multiply(shared, Operand{a.skip + o0 * a.c_in, a.c_in, a.c_out - o0, 0, true, a.c_in % 4 != 0},
                      Operand{x + w0, plane, a.w - w0, offset, whole_vectors, false}, 0, a.c_in);
    }
    const int64_t stride = int64_t(a.h) * a.columns;
    tile.multiply(shared, Operand{rows + o0 * stride, stride, a.c_out - o0, 0, true, a.columns % 4 != 0},
                  Operand{a.table + w0, a.w, a.w - w0, 0, whole_vectors, false}, 0, a.columns);

    constexpr int ROWS = sizeof(tile.sum) / sizeof(tile.sum[0]);
    constexpr int COLUMNS = sizeof(tile.sum[0]) / sizeof(tile.sum[0][0]);
    if (a.bias != nullptr) {
#pragma unroll
        for (int e = 0; e < 2 * ROWS; ++e) {
            const int o = o0 + tile.row(e / 2) + e % 2 * 8;
            const float bias = o < a.c_out ? a.bias[o] : 0.0f;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                tile.sum[e / 2][j][e % 2 * 2] += bias;
                tile.sum[e / 2][j][e % 2 * 2 + 1] += bias;
            }
        }
    }
    activate(tile.sum, a.activation);
#pragma unroll
    for (int e = 0; e < 2 * ROWS; ++e) {
        const int o = o0 + tile.row(e / 2) + e % 2 * 8;
        if (o >= a.c_out) continue;
        float *y = a.y + (b * a.c_out + o) * plane + int64_t(h) * a.w;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const int w = w0 + tile.column(j);
            const float *pair = tile.sum[e / 2][j] + e % 2 * 2;
            if (a.w % 2 == 0) {
                if (w < a.w) *reinterpret_cast<float2 *>(y + w) = float2{pair[0], pair[1]};
            } else {
                if (w < a.w) y[w] = pair[0];
                if (w + 1 < a.w) y[w + 1] = pair[1];
            }
        }
    }
}

template <int ROWS, int WARPS_M, int WARPS_N>
void launch(unsigned blocks, cudaStream_t stream, const Arguments &a) {
    using T = Tile<ROWS, 4, WARPS_M, WARPS_N>;
    fourier_rows<T><<<blocks, T::kThreads, 0, stream>>>(a);
}

// The tiles that plan() may ask for.
void launch(const Plan &p, unsigned blocks, cudaStream_t stream, const Arguments &a) {
    switch (p.tile_channels * 1000 + p.tile_points) {
    case 16032: return launch<1, 1, 1>(blocks, stream, a);
    case 16064: return launch<1, 1, 2>(blocks, stream, a);
    case 16128: return launch<1, 1, 4>(blocks, stream, a);
    case 32032: return launch<2, 1, 1>(blocks, stream, a);
    case 32064: return launch<2, 1, 2>(blocks, stream, a);
    case 32128: return launch<2, 1, 4>(blocks, stream, a);
    case 48032: return launch<3, 1, 1>(blocks, stream, a);
    case 48064: return launch<3, 1, 2>(blocks, stream, a);
    case 48128: return launch<3, 1, 4>(blocks, stream, a);
    case 64032: return launch<2, 2, 1>(blocks, stream, a);
    case 64064: return launch<2, 2, 2>(blocks, stream, a);
    case 64128: return launch<2, 2, 4>(blocks, stream, a);
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_fourier_rows(const turbofno_layer *layer, CUstream_st *stream) {
    using namespace turbofno;
    const turbofno_status status = ready(*layer);
    if (status != TURBOFNO_OK) return status;
    const Plan p = plan(*layer);
    Arguments a{};
    a.x = layer->x;
    a.skip = layer->skip;
    a.bias = layer->bias;
    a.rows = at(*layer, p.rows);
    a.table = layer->row_synthesis;
    a.y = layer->y;
    a.c_in = layer->skip != nullptr ? layer->c_in : 0;
    a.c_out = layer->c_out;
    a.h = layer->h_out;
    a.w = layer->w_out;
    a.columns = 2 * layer->modes_w;
    a.activation = layer->activation;
    a.channel_tiles = ceil_div(a.c_out, p.tile_channels);
    a.point_tiles = ceil_div(a.w, p.tile_points);
    const unsigned blocks = unsigned(layer->batch * a.h * a.channel_tiles * a.point_tiles);
    launch(p, blocks, stream, a);
    return launched();
}
