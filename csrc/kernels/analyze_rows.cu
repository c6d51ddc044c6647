// The truncated DFT along the last axis, as one real matrix product: [rows, points] . [points, 2 modes].
//
// A block computes 16 * TM rows times 8 * TN columns with 128 threads, 8 threads across the columns. Thread
// (ty, tx) owns rows ty * TM .. and columns tx, tx + 8, ..: a warp then reads 8 neighbouring columns (no bank
// conflict) and four groups of rows (broadcast). Both operands go through shared memory in steps of 16 points, in
// three buffers: while one is multiplied, the next two are on their way.
//
// Where rows are few and long the sum over points is split over blocks; partial sums are added in a fixed
// order by a second kernel, so that results do not change from run to run.
#include "async_copy.cuh"
#include "launch.h"

namespace turbofno {
namespace {

constexpr int kThreads = 128;
constexpr int kStep = 16;
constexpr int kBuffers = 3;

struct Arguments {
    const float *x, *table;
    float *out;
    int64_t rows;
    int points, columns, split_points, column_tiles, splits;
    int64_t row_stride, mode_stride, split_stride; // of `out`, in floats
};

template <int TM, int TN> __global__ void __launch_bounds__(kThreads, 4) analyze(const Arguments a) {
    constexpr int BM = 16 * TM, BN = 8 * TN;
    __shared__ __align__(16) float rows[kBuffers][kStep][BM + 4];
    __shared__ float table[kBuffers][kStep][BN];

    const int tile = blockIdx.x % (a.column_tiles * a.splits);
    const int column0 = tile % a.column_tiles * BN;
    const int split = tile / a.column_tiles;
    const int64_t row0 = int64_t(blockIdx.x / (a.column_tiles * a.splits)) * BM;
    const int begin = split * a.split_points;
    const int end = min(begin + a.split_points, a.points);
    const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;

    const auto load = [&](int buffer, int k0) {
        for (int e = threadIdx.x; e < BM * kStep; e += kThreads) {
            const int k = k0 + e % kStep;
            const int64_t row = row0 + e / kStep;
            const bool inside = k < end && row < a.rows;
            copy_async(&rows[buffer][e % kStep][e / kStep], inside ? a.x + row * a.points + k : a.x, inside);
        }
        for (int e = threadIdx.x; e < BN * kStep; e += kThreads) {
            const int k = k0 + e / BN, column = column0 + e % BN;
            const bool inside = k < end && column < a.columns;
            const float *from = inside ? a.table + int64_t(k) * a.columns + column : a.table;
            copy_async(&table[buffer][e / BN][e % BN], from, inside);
        }
        commit_copies();
    };

    float sum[TM][TN] = {};
    load(0, begin);
    load(1, begin + kStep);
    int buffer = 0;
    for (int k0 = begin; k0 < end; k0 += kStep) {
        wait_copies<1>();
        __syncthreads(); // this step's values are there, and the buffer filled next has been read
        load((buffer + 2) % kBuffers, k0 + 2 * kStep);
#pragma unroll
        for (int k = 0; k < kStep; ++k) {
            float left[TM], right[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                *reinterpret_cast<float4 *>(left + i) =
                    *reinterpret_cast<const float4 *>(&rows[buffer][k][ty * TM + i]);
            }
#pragma unroll
            for (int j = 0; j < TN; ++j) right[j] = table[buffer][k][tx + 8 * j];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
            }
        }
        buffer = (buffer + 1) % kBuffers;
    }

    float *out = a.out + split * a.split_stride;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int64_t row = row0 + ty * TM + i;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int column = column0 + tx + 8 * j;
            if (row < a.rows && column < a.columns) {
                out[row * a.row_stride + (column >> 1) * a.mode_stride + (column & 1)] = sum[i][j];
            }
        }
    }
}

__global__ void add_splits(const float *partial, float *out, int64_t count, int splits) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int s = 0; s < splits; ++s) sum += partial[s * count + i];
    out[i] = sum;
}

template <int TM> void launch(int column_registers, unsigned blocks, cudaStream_t stream, const Arguments &a) {
    switch (column_registers) {
    case 2: analyze<TM, 2><<<blocks, kThreads, 0, stream>>>(a); break;
    case 3: analyze<TM, 3><<<blocks, kThreads, 0, stream>>>(a); break;
    case 4: analyze<TM, 4><<<blocks, kThreads, 0, stream>>>(a); break;
    case 6: analyze<TM, 6><<<blocks, kThreads, 0, stream>>>(a); break;
    default: analyze<TM, 8><<<blocks, kThreads, 0, stream>>>(a); break;
    }
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_analyze_rows(const turbofno_layer *layer, CUstream_st *stream) {
    using namespace turbofno;
    const turbofno_status status = ready(*layer);
    if (status != TURBOFNO_OK) return status;
    const Plan p = plan(*layer);
    Arguments a{};
    a.x = layer->x;
    a.table = layer->row_analysis;
    a.rows = layer->batch * layer->c_in * layer->h_in;
    a.points = layer->w_in;
    a.columns = 2 * layer->modes_w;
    a.column_tiles = ceil_div(a.columns, 8 * p.column_registers);
    a.splits = p.splits;
    a.split_points = p.split_points;
    const int64_t count = a.rows * a.columns;
    float *result = at(*layer, is_1d(*layer) ? p.modes : p.rows);
    a.out = p.splits > 1 ? at(*layer, p.partial) : result;
    a.split_stride = count;
    // 1D: [mode][batch][channel], as the mode product reads it; 2D: a row's modes together
    a.row_stride = is_1d(*layer) ? 2 : a.columns;
    a.mode_stride = is_1d(*layer) ? 2 * a.rows : 2;

    const int64_t blocks = ceil_div(a.rows, int64_t(16 * p.row_registers)) * a.column_tiles * a.splits;
    if (p.row_registers == 8) {
        launch<8>(p.column_registers, unsigned(blocks), stream, a);
    } else {
        launch<4>(p.column_registers, unsigned(blocks), stream, a);
    }
    if (const turbofno_status s = launched(); s != TURBOFNO_OK || p.splits == 1) return s;
    add_splits<<<unsigned(ceil_div(count, int64_t(256))), 256, 0, stream>>>(a.out, result, count, p.splits);
    return launched();
}
