// Inverse DFT along the last axis, pointwise skip, bias and activation: one read of x, one write of y.
//
// For one row (b, h) and all channels this is one real matrix product,
//     y[o, w] = activation([skip | R'][o, :] . [x ; S][:, w] + bias[o])
// R' the row's mixed spectrum, S the synthesis table: the skip is only more terms in the inverse DFT's sum.
//
// A block computes BM channels times BN points, a thread TM times TN of them. Points of a thread lie in groups
// of four, BN / (TN / 4) apart, so that a warp reads shared memory and writes y in full lines.
#include "async_copy.cuh"
#include "launch.h"

namespace turbofno {
namespace {

constexpr int kStep = 16;
constexpr int kBuffers = 3;

struct Arguments {
    const float *x, *skip, *bias, *rows, *table;
    float *y;
    int c_in, c_out, h, w, columns, activation;
    int channel_tiles, point_tiles;
    bool vectors; // rows of y start at multiples of 16 bytes
};

__device__ float activate(float v, int activation) {
    switch (activation) {
    case TURBOFNO_RELU: return v < 0.0f ? 0.0f : v; // NaN stays NaN
    case TURBOFNO_GELU: return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    case TURBOFNO_GELU_TANH: return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
    case TURBOFNO_SILU: return v / (1.0f + expf(-v));
    case TURBOFNO_TANH: return tanhf(v);
    default: return v;
    }
}

template <int BM, int BN, int TM, int TN>
__global__ void __launch_bounds__((BM / TM) * (BN / TN), 512 / ((BM / TM) * (BN / TN)))
fourier_rows(const Arguments a) {
    constexpr int kThreads = (BM / TM) * (BN / TN);
    constexpr int GROUPS = TN / 4, GROUP_STRIDE = BN / GROUPS;
    __shared__ __align__(16) float left[kBuffers][kStep][BM + 4];
    __shared__ __align__(16) float right[kBuffers][kStep][BN];

    const int tile = blockIdx.x % (a.channel_tiles * a.point_tiles);
    const int o0 = tile % a.channel_tiles * BM;
    const int w0 = tile / a.channel_tiles * BN;
    const int row = blockIdx.x / (a.channel_tiles * a.point_tiles);
    const int h = row % a.h;
    const int64_t b = row / a.h;
    const int tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    const int64_t plane = int64_t(a.h) * a.w;
    const int terms = a.c_in + a.columns; // c_in is 0 here without skip
    const float *x = a.x + (b * a.c_in * a.h + h) * a.w;
    const float *rows = a.rows + (b * a.c_out * a.h + h) * a.columns;

    const auto load = [&](int buffer, int k0) {
        for (int e = threadIdx.x; e < BM * kStep; e += kThreads) {
            const int k = k0 + e % kStep, o = o0 + e / kStep;
            const bool inside = o < a.c_out && k < terms;
            const float *from = !inside      ? a.table
                                : k < a.c_in ? a.skip + o * a.c_in + k
                                             : rows + int64_t(o) * a.h * a.columns + (k - a.c_in);
            copy_async(&left[buffer][e % kStep][e / kStep], from, inside);
        }
        for (int e = threadIdx.x; e < BN * kStep; e += kThreads) {
            const int k = k0 + e / BN, w = w0 + e % BN;
            const bool inside = w < a.w && k < terms;
            const float *from = !inside      ? a.table
                                : k < a.c_in ? x + k * plane + w
                                             : a.table + int64_t(k - a.c_in) * a.w + w;
            copy_async(&right[buffer][e / BN][e % BN], from, inside);
        }
        commit_copies();
    };

    float sum[TM][TN] = {};
    load(0, 0);
    load(1, kStep);
    int buffer = 0;
    for (int k0 = 0; k0 < terms; k0 += kStep) {
        wait_copies<1>();
        __syncthreads(); // this step's values are there, and the buffer filled next has been read
        load((buffer + 2) % kBuffers, k0 + 2 * kStep);
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
            float u[TM], v[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                *reinterpret_cast<float4 *>(u + i) =
                    *reinterpret_cast<const float4 *>(&left[buffer][k][ty * TM + i]);
            }
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                *reinterpret_cast<float4 *>(v + 4 * g) =
                    *reinterpret_cast<const float4 *>(&right[buffer][k][g * GROUP_STRIDE + tx * 4]);
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
            }
        }
        buffer = (buffer + 1) % kBuffers;
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int o = o0 + ty * TM + i;
        if (o >= a.c_out) break;
        const float bias = a.bias != nullptr ? a.bias[o] : 0.0f;
        float *y = a.y + (b * a.c_out + o) * plane + int64_t(h) * a.w;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int w = w0 + g * GROUP_STRIDE + tx * 4;
            float out[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) out[j] = activate(sum[i][4 * g + j] + bias, a.activation);
            if (a.vectors && w < a.w) {
                *reinterpret_cast<float4 *>(y + w) = float4{out[0], out[1], out[2], out[3]};
                continue;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (w + j < a.w) y[w + j] = out[j];
            }
        }
    }
}

template <int BM, int BN, int TM, int TN> void launch(unsigned blocks, cudaStream_t stream, const Arguments &a) {
    fourier_rows<BM, BN, TM, TN><<<blocks, (BM / TM) * (BN / TN), 0, stream>>>(a);
}

// The tiles that plan() may ask for.
void launch(const Plan &p, unsigned blocks, cudaStream_t stream, const Arguments &a) {
    switch (p.tile_channels * 1000 + p.tile_points) {
    case 16032: return launch<16, 32, 4, 4>(blocks, stream, a);
    case 16064: return launch<16, 64, 4, 4>(blocks, stream, a);
    case 16128: return launch<16, 128, 4, 4>(blocks, stream, a);
    case 32032: return launch<32, 32, 4, 4>(blocks, stream, a);
    case 32064: return launch<32, 64, 4, 4>(blocks, stream, a);
    case 32128: return launch<32, 128, 4, 8>(blocks, stream, a);
    case 48032: return launch<48, 32, 4, 4>(blocks, stream, a);
    case 48064: return launch<48, 64, 8, 4>(blocks, stream, a);
    case 48128: return launch<48, 128, 8, 8>(blocks, stream, a);
    case 64032: return launch<64, 32, 4, 4>(blocks, stream, a);
    case 64064: return launch<64, 64, 8, 4>(blocks, stream, a);
    case 64128: return launch<64, 128, 8, 8>(blocks, stream, a);
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
    a.vectors = a.w % 4 == 0;
    const unsigned blocks = unsigned(layer->batch * a.h * a.channel_tiles * a.point_tiles);
    launch(p, blocks, stream, a);
    return launched();
}
