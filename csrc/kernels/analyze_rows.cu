// The truncated DFT along the last axis, as one real matrix product: [rows, points] . [points, 2 modes].
//
// Where rows are few and long the sum over points is split over blocks; partial sums are added in a fixed
// order by a second kernel, so that results do not change from run to run.
#include "launch.h"
#include "tile_product.cuh"

namespace turbofno {
namespace {

struct Arguments {
    const float *x, *table;
    float *out;
    int64_t rows;
    int points, columns, split_points, column_tiles, splits;
    int64_t row_stride, mode_stride, split_stride; // of `out`, in floats
};

template <int ROWS, int COLUMNS> using RowsTile = Tile<ROWS, COLUMNS, 4, 1>;

template <int ROWS, int COLUMNS>
__global__ void __launch_bounds__(RowsTile<ROWS, COLUMNS>::kThreads, RowsTile<ROWS, COLUMNS>::kBlocks)
analyze(const Arguments a) {
    using T = RowsTile<ROWS, COLUMNS>;
    __shared__ typename T::Shared shared;
    const int part = blockIdx.x % (a.column_tiles * a.splits);
    const int column0 = part % a.column_tiles * T::BN;
    const int split = part / a.column_tiles;
    const int64_t row0 = int64_t(blockIdx.x / (a.column_tiles * a.splits)) * T::BM;
    const int begin = split * a.split_points;
    const int end = min(begin + a.split_points, a.points);

    T tile;
    const int64_t rows = min(a.rows - row0, int64_t(T::BM));
    tile.multiply(shared,
                  Operand{a.x + row0 * a.points, a.points, int(rows), int(row0 * a.points & 3), a.points % 4 == 0, false},
                  Operand{a.table + column0, a.columns, a.columns - column0, 0, a.columns % 4 == 0, false}, begin, end);

    float *out = a.out + split * a.split_stride;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t row = row0 + tile.row(i) + 8 * half;
            if (row >= a.rows) continue;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const int column = column0 + tile.column(j); // even: a mode's real part, beside its imaginary part
                if (column >= a.columns) continue;
                const float *z = tile.sum[i][j] + 2 * half;
                *reinterpret_cast<float2 *>(out + row * a.row_stride + column / 2 * a.mode_stride) =
                    float2{z[0], z[1]};
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

template <int ROWS> void launch(int columns, unsigned blocks, cudaStream_t stream, const Arguments &a) {
    constexpr int threads = RowsTile<ROWS, 1>::kThreads;
    switch (columns) {
    case 1: analyze<ROWS, 1><<<blocks, threads, 0, stream>>>(a); break;
    case 2: analyze<ROWS, 2><<<blocks, threads, 0, stream>>>(a); break;
    case 3: analyze<ROWS, 3><<<blocks, threads, 0, stream>>>(a); break;
    case 4: analyze<ROWS, 4><<<blocks, threads, 0, stream>>>(a); break;
    case 6: analyze<ROWS, 6><<<blocks, threads, 0, stream>>>(a); break;
    default: analyze<ROWS, 8><<<blocks, threads, 0, stream>>>(a); break;
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
    a.column_tiles = ceil_div(a.columns, 8 * p.column_fragments);
    a.splits = p.splits;
    a.split_points = p.split_points;
    const int64_t count = a.rows * a.columns;
    float *result = at(*layer, is_1d(*layer) ? p.modes : p.rows);
    a.out = p.splits > 1 ? at(*layer, p.partial) : result;
    a.split_stride = count;
    // 1D: [mode][batch][channel], as the mode product reads it; 2D: a row's modes together
    a.row_stride = is_1d(*layer) ? 2 : a.columns;
    a.mode_stride = is_1d(*layer) ? 2 * a.rows : 2;

    const int64_t blocks = ceil_div(a.rows, int64_t(64 * p.row_fragments)) * a.column_tiles * a.splits;
    if (p.row_fragments == 2) {
        launch<2>(p.column_fragments, unsigned(blocks), stream, a);
    } else {
        launch<1>(p.column_fragments, unsigned(blocks), stream, a);
    }
    if (const turbofno_status s = launched(); s != TURBOFNO_OK || p.splits == 1) return s;
    add_splits<<<unsigned(ceil_div(count, int64_t(256))), 256, 0, stream>>>(a.out, result, count, p.splits);
    return launched();
}
