// The whole spectral product of a 2D layer for few batch elements: transform of the other axis, product of modes and inverse
// transform in one launch, by thread block clusters, in float32.
//
// A cluster has two neighbouring modes of the last axis. Its work is dealt to its 16 blocks three times, by input channel, by
// mode of the other axis and by output channel; index i belongs to block i % 16. A block writes its results into the shared
// memory of the blocks that need them next, whose mbarriers count the bytes: after the first barrier of the cluster no block
// waits for others but for their data. Weights are read into registers before the kernel waits for the spectra.
//
//     fold       e[j] = in[j] + in[-j], d[j] = in[j] - in[-j]                        its input channels, from memory
//     transform  z[+-k] = sum over j of cos(k j) e[j] -+ i sin(k j) d[j]             to the blocks of the modes
//     multiply   y[o] = sum over c of z[c] weight[c][o]                              its modes, to the blocks of the channels
//     fold       u[k] = y[k] + y[-k], v[k] = y[k] - y[-k]                            its output channels
//     transform  out[+-n] = sum over k of cos(k n) u[k] +- i sin(k n) v[k]           to memory
//
// Points and modes are in FFT order, and so are the tables, float2 (cos, sin) [k][j] (_cuda_tables.py, folded_axis).
#include "../plan/spectral_plan.h"
#include "cluster.cuh"
#include "complex.cuh"
#include "fft_order.cuh"
#include "pdl.cuh"
#include "warp_mma.cuh"

namespace turbofno {
namespace {

struct SpectralArguments {
    const float2 *in, *weight, *in_table, *out_table;
    float2 *out;
    int batch, c_in, c_out, rows, out_rows, kept, modes, row_modes;
    bool weights_settled;
    float scale; // 1 / rows
    SpectralPlan plan;
};

#if __CUDA_ARCH__ >= 900

// Adds a folded value (e, d) times (cos, sin): e cos to sum[0], sum[1], d sin to sum[2], sum[3].
__device__ __forceinline__ void add_folded(float (&sum)[4], float2 w, float4 v) {
    sum[0] = fmaf(w.x, v.x, sum[0]);
    sum[1] = fmaf(w.x, v.y, sum[1]);
    sum[2] = fmaf(w.y, v.z, sum[2]);
    sum[3] = fmaf(w.y, v.w, sum[3]);
}

// The sum over the lanes that differ in BIT, of the half of the values that this lane keeps: the upper one if it has the bit.
template <int BIT, int COUNT>
__device__ __forceinline__ void sum_half(float (&half)[COUNT], const float (&values)[2 * COUNT], int lane) {
    const bool upper = (lane & BIT) != 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float kept = upper ? values[COUNT + i] : values[i], given = upper ? values[i] : values[COUNT + i];
        half[i] = kept + __shfl_xor_sync(0xffffffff, given, BIT);
    }
}

// The same of both values that this lane keeps.
template <int BIT> __device__ __forceinline__ float2 sum_both(const float (&values)[2]) {
    return {values[0] + __shfl_xor_sync(0xffffffff, values[0], BIT), values[1] + __shfl_xor_sync(0xffffffff, values[1], BIT)};
}

// Two neighbours in memory: modes of the last axis, or channels.
struct Pair {
    float2 of[2];

    __device__ __forceinline__ explicit Pair(float4 v) : of{{v.x, v.y}, {v.z, v.w}} {}
};

__device__ __forceinline__ float4 read_weights(const float2 *from) {
    float4 w; // in assembly, so that the compiler does not move the load behind pdl_wait
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(w.x), "=f"(w.y), "=f"(w.z), "=f"(w.w) : "l"(from));
    return w;
}

// PAIRS: of input channels, whose weights a lane holds at once.
template <int PAIRS>
__global__ void __launch_bounds__(kMaxSpectralThreads) spectral_product_kernel(const __grid_constant__ SpectralArguments a) {
    extern __shared__ __align__(16) char shared[];
    const SpectralPlan &p = a.plan;
    const int tid = threadIdx.x, threads = blockDim.x, lane = tid % 32, warp = tid / 32, warps = threads / 32;
    const int rank = cluster_rank(), y0 = 2 * blockIdx.y, widths = min(2, a.modes - y0);
    const auto owned = [rank](int count) { return ceil_div(count - rank, kCluster); };
    const int channels = owned(a.c_in), out_channels = owned(a.c_out), kept = owned(a.kept);
    const unsigned here = shared_address(shared);
    constexpr unsigned kTables = 0, kTransformed = 8, kProducts = 16; // mbarriers
    auto *const folded = reinterpret_cast<float4 *>(shared + p.folded_at);
    auto *const transformed = reinterpret_cast<float2 *>(shared + p.transformed_at);
    auto *const products = reinterpret_cast<const float2 *>(shared + p.products_at);
    auto *const sums = reinterpret_cast<float4 *>(shared + p.sums_at);

    const bool copies = tid == threads - 32; // of the last warp, which has least to fold
    if (copies) {
        for (unsigned barrier : {kTables, kTransformed, kProducts}) init_barrier(here + barrier, 1);
        arrive_and_expect(here + kTransformed, a.batch * kept * widths * a.c_in * 8);
        arrive_and_expect(here + kProducts, a.batch * out_channels * widths * a.kept * 8);
    }
    __syncwarp();
    cluster_arrive();
    if (!a.weights_settled) pdl_wait();
    if (copies) {
        arrive_and_expect(here + kTables, p.in_table_bytes + p.out_table_bytes);
        bulk_copy(here + p.in_table_at, a.in_table, p.in_table_bytes, here + kTables);
        if (p.out_table_bytes > 0) bulk_copy(here + p.out_table_at, a.out_table, p.out_table_bytes, here + kTables);
    }

    // Weights: a warp has 16 output channels of a mode, a lane two of them and a quarter of the input channels.
    const int matrix = a.c_in * a.c_out, units = 2 * kept * p.groups.by;
    struct Unit {
        int mode, y, o; // `mode` counts this block's modes of both axes
        const float2 *weight;
    };
    const auto unit_of = [&](int index) {
        Unit unit;
        unit.mode = p.groups.quotient(index), unit.y = unit.mode % 2;
        unit.o = (index - unit.mode * p.groups.by) * 16 + lane % 8 * 2;
        const int kx = rank + unit.mode / 2 * kCluster;
        unit.weight = a.weight + (int64_t(kx) * a.modes + y0 + unit.y) * matrix + min(unit.o, a.c_out - 2);
        return unit;
    };
    float4 w[PAIRS][2];
    const auto read_all = [&](const Unit &unit, int first) {
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int channel = first + 8 * i + lane / 8 * 2 + c;
                w[i][c] = channel < a.c_in ? read_weights(unit.weight + channel * a.c_out) : float4{};
            }
        }
    };
    Unit unit = unit_of(warp);
    if (warp < units && unit.y < widths) read_all(unit, 0);
#pragma unroll 1
    for (int row = warp; row < 2 * a.batch * p.mode_share; row += warps) { // zeros behind the channels that arrive
#pragma unroll 1
        for (int c = a.c_in + lane; c < p.c_pitch; c += 32) transformed[row * p.c_pitch + c] = float2{0.0f, 0.0f};
    }

    // Fold: items [batch][channel][j]. Zeros where a lane of the transform would go beyond the last j.
    const int folds = p.folds.by, of_batch = a.batch * p.in_share.by;
    struct Fold {
        int to;
        const float2 *positive, *negative; // null: zero
    };
    const auto fold_of = [&](int item) {
        const int column = p.folds.quotient(item), j = item - column * folds;
        const int b = p.in_share.quotient(column), slot = column - b * p.in_share.by;
        const float2 *from = a.in + (int64_t(b) * a.c_in + rank + slot * kCluster) * (a.rows * a.row_modes) + y0;
        Fold fold{2 * column * folds + j, nullptr, nullptr};
        if (slot < channels && has_positive(j, a.rows)) fold.positive = from + j * a.row_modes;
        if (slot < channels && has_negative(j, a.rows)) fold.negative = from + (a.rows - j) * a.row_modes;
        return fold;
    };
    const auto read = [](const float2 *from) { return from == nullptr ? float4{} : *reinterpret_cast<const float4 *>(from); };
    Fold fold = fold_of(tid);
    pdl_wait();
    pdl_trigger_of_small_grid();
#pragma unroll 1
    for (int item = tid; item < of_batch * folds;) {
        const Fold now = fold;
        const Pair positive(read(now.positive)), negative(read(now.negative));
        item += threads;
        if (item < of_batch * folds) fold = fold_of(item);
#pragma unroll
        for (int y = 0; y < 2; ++y) {
            const float2 e = positive.of[y] + negative.of[y], d = positive.of[y] - negative.of[y];
            folded[now.to + y * folds] = float4{e.x, e.y, d.x, d.y};
        }
    }
    __syncthreads();
    wait_for(here + kTables, 0);
    cluster_wait(); // the barriers of all blocks are initialised

    // Transform: items [batch][channel][k], eight lanes each.
    const int split = lane % 8, frequencies = p.frequencies.by, transforms = of_batch * frequencies;
    for (int item = tid / 8; __any_sync(0xffffffff, item < transforms); item += threads / 8) {
        const int column = p.frequencies.quotient(item), k = item - column * frequencies;
        const int b = p.in_share.quotient(column), slot = column - b * p.in_share.by;
        const bool inside = item < transforms && slot < channels;
        const float2 *table = reinterpret_cast<const float2 *>(shared + p.in_table_at) + (inside ? k * p.in_pitch : 0) + split;
        const float4 *from = folded + (inside ? 2 * column * folds : 0) + split;
        float sum[2][4] = {};
#pragma unroll 3
        for (int j = 0; j < folds; j += 8) {
            const float2 cosine_sine = table[j];
            add_folded(sum[0], cosine_sine, from[j]);
            add_folded(sum[1], cosine_sine, from[j + folds]);
        }
        float both[8]; // [mode of the last axis][k, -k][re, im]
#pragma unroll
        for (int y = 0; y < 2; ++y) {
            const float(&s)[4] = sum[y];
            both[4 * y] = s[0] + s[3], both[4 * y + 1] = s[1] - s[2];
            both[4 * y + 2] = s[0] - s[3], both[4 * y + 3] = s[1] + s[2];
        }
        float one[4], part[2];
        sum_half<4>(one, both, lane);
        sum_half<2>(part, one, lane);
        const float2 z = sum_both<1>(part);
        const int y = split / 4;
        const bool negative = (split & 2) != 0;
        const bool exists = negative ? has_negative(k, a.kept) : has_positive(k, a.kept);
        if (inside && exists && split % 2 == 0 && y < widths) {
            const int i = negative ? a.kept - k : k, place = (b * p.mode_share + i / kCluster) * 2 + y;
            const unsigned there = address_in(here, i % kCluster);
            const unsigned at = p.transformed_at + 8 * (place * p.c_pitch + rank + slot * kCluster);
            store_async(there + at, float2{z.x * a.scale, z.y * a.scale}, there + kTransformed);
        }
    }

    // Multiply: units [mode of the other axis][mode of the last axis][16 output channels], a warp each.
    for (int index = warp; index < units; index += warps) {
        if (index != warp) {
            unit = unit_of(index);
            if (unit.y < widths) read_all(unit, 0);
        }
        if (unit.y >= widths) continue;
        wait_for(here + kTransformed, 0);
#pragma unroll 1
        for (int b = 0; b < a.batch; ++b) {
            const int row = b * p.mode_share * 2 + unit.mode;
            const auto *z = reinterpret_cast<const float4 *>(transformed + row * p.c_pitch) + lane / 8;
            float sum[4] = {};
#pragma unroll 1
            for (int first = 0; first < a.c_in; first += 8 * PAIRS, z += 4 * PAIRS) {
                if (a.c_in > 8 * PAIRS) read_all(unit, first);
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) {
                    const Pair v(z[4 * i]);
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        const float2 in = v.of[c];
                        sum[0] = fmaf(in.x, w[i][c].x, fmaf(-in.y, w[i][c].y, sum[0]));
                        sum[1] = fmaf(in.x, w[i][c].y, fmaf(in.y, w[i][c].x, sum[1]));
                        sum[2] = fmaf(in.x, w[i][c].z, fmaf(-in.y, w[i][c].w, sum[2]));
                        sum[3] = fmaf(in.x, w[i][c].w, fmaf(in.y, w[i][c].z, sum[3]));
                    }
                }
            }
            float part[2];
            sum_half<16>(part, sum, lane);
            const float2 value = sum_both<8>(part);
            if (lane % 16 < 8 && unit.o < a.c_out) {
                const int channel = unit.o + lane / 16;
                const int place = (b * p.out_share.by + channel / kCluster) * 2 + unit.y;
                const unsigned there = address_in(here, channel % kCluster);
                const unsigned at = p.products_at + 8 * (place * a.kept + rank + unit.mode / 2 * kCluster);
                store_async(there + at, value, there + kProducts);
            }
        }
    }

    // Fold: items [batch][channel][mode of the last axis][k].
    const int of_out = a.batch * p.out_share.by;
    wait_for(here + kProducts, 0);
#pragma unroll 1
    for (int item = tid; item < 2 * of_out * frequencies; item += threads) {
        const int column = p.frequencies.quotient(item), k = item - column * frequencies;
        const float2 *from = products + column * a.kept, zero{0.0f, 0.0f};
        const float2 positive = has_positive(k, a.kept) ? from[k] : zero;
        const float2 negative = has_negative(k, a.kept) ? from[a.kept - k] : zero;
        const float2 u = positive + negative, v = positive - negative;
        sums[item] = float4{u.x, u.y, v.x, v.y};
    }
    __syncthreads();
    pdl_trigger();

    // Transform: items [batch][channel][n].
#pragma unroll 1
    for (int item = tid; item < of_out * p.out_folds.by; item += threads) {
        const int column = p.out_folds.quotient(item), n = item - column * p.out_folds.by;
        const int b = p.out_share.quotient(column), slot = column - b * p.out_share.by;
        if (slot >= out_channels) continue;
        const float4 *from = sums + 2 * column * frequencies;
        const float2 *table = reinterpret_cast<const float2 *>(shared + p.out_table_at) + n;
        float sum[2][4] = {};
#pragma unroll 3
        for (int k = 0; k < frequencies; ++k, table += p.out_pitch) {
            add_folded(sum[0], *table, from[k]);
            add_folded(sum[1], *table, from[k + frequencies]);
        }
        const bool second = widths == 2; // else it has no weight
        float2 *const to = a.out + (int64_t(b) * a.c_out + rank + slot * kCluster) * (a.out_rows * a.row_modes) + y0;
        const auto put = [&](int row, float sign) {
            float4 value;
            value.x = fmaf(-sign, sum[0][3], sum[0][0]), value.y = fmaf(sign, sum[0][2], sum[0][1]);
            value.z = second ? fmaf(-sign, sum[1][3], sum[1][0]) : 0.0f;
            value.w = second ? fmaf(sign, sum[1][2], sum[1][1]) : 0.0f;
            *reinterpret_cast<float4 *>(to + row * a.row_modes) = value;
        };
        if (has_positive(n, a.out_rows)) put(n, 1.0f);
        if (has_negative(n, a.out_rows)) put(a.out_rows - n, -1.0f);
    }
}

#else

// Refused: the device runs no clusters.
template <int PAIRS> __global__ void spectral_product_kernel(const SpectralArguments) {}

#endif

using Kernel = void (*)(SpectralArguments);

// Sixteen blocks are more than CUDA calls portable.
void allow_clusters(Kernel kernel) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    allow_shared_memory(kernel, kMaxSharedBytes);
}

Kernel kernel_for(int c_in) { return c_in <= 32 ? spectral_product_kernel<4> : spectral_product_kernel<8>; }

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_spectral_product(const turbofno_spectral *s, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_spectral_unsupported(s) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (s->input == nullptr || s->weight == nullptr || s->out == nullptr || s->in_table == nullptr || s->out_table == nullptr) {
        return TURBOFNO_NULL_POINTER;
    }
    SpectralArguments a{};
    a.in = reinterpret_cast<const float2 *>(s->input);
    a.weight = reinterpret_cast<const float2 *>(s->weight);
    a.in_table = reinterpret_cast<const float2 *>(s->in_table);
    a.out_table = reinterpret_cast<const float2 *>(s->out_table);
    a.out = reinterpret_cast<float2 *>(s->out);
    a.batch = int(s->batch);
    a.c_in = s->c_in;
    a.c_out = s->c_out;
    a.rows = s->rows;
    a.out_rows = s->out_rows;
    a.kept = s->kept;
    a.modes = s->modes;
    a.row_modes = s->row_modes;
    a.weights_settled = s->weights_settled != 0;
    a.scale = 1.0f / float(s->rows);
    a.plan = plan(*s);
    const Kernel kernel = kernel_for(s->c_in);
    const dim3 blocks(kCluster, unsigned(a.plan.mode_groups));
    allow_clusters(kernel);
    return launch_pdl(kernel, blocks, a.plan.threads, size_t(a.plan.shared_bytes), stream, a, kCluster);
}

extern "C" int turbofno_device_clusters(void) {
    using namespace turbofno;
    if (compiled_architecture() < 90) return 0;
    const Kernel kernel = kernel_for(kMaxChannels);
    allow_clusters(kernel);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kCluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kCluster);
    config.blockDim = dim3(kMaxSpectralThreads);
    config.dynamicSmemBytes = kMaxSharedBytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess) return clusters;
    cudaGetLastError(); // clear it for the next caller
    return 0;
}
