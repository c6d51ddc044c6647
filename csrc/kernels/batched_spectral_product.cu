// The spectral product of many batch elements: transform of the first axis, product of modes and inverse transform in one launch,
// by thread block clusters. Between them nothing goes to memory.
//
// A cluster takes 8 batch elements and one mode of the other axes, with all channels; a block 16 of these, a line of 128 bytes. Its
// work is dealt twice, by channels and by modes of the first axis. Results go to the shared memory of the block that needs them,
// whose mbarriers count the bytes.
//
//     transform  z[k][b][c] = sum over n of exp(-i k n) in[b][n][c]     its channels, to the blocks of the modes
//     multiply   y[k][b][o] = sum over c of z[k][b][c] weight[k][c][o]  its modes, to the blocks of the channels
//     inverse    out[b][n][o] = sum over k of exp(i k n) y[k][b][o]     its channels, to memory
//
// Transforms are wgmma products in TF32. Channels are rows, 16 of a batch element a warp, real and imaginary parts as two products;
// row g is channel 2g, row g + 8 channel 2g + 1, so that a lane reads and writes two channels as 16 bytes. The table is B
// (_cuda_tables.py, batched_analysis, batched_synthesis). The transform has 16 columns of cosines and 16 of sines; out[k] and
// out[-k] follow from both. The inverse has columns of 32 points, and terms y[k] + y[-k] for cosines, y[k] - y[-k] for sines.
//
// In the product A holds the weights of 16 output channels, in the same order, B 8 batch elements.
#include "../plan/batched_spectral_plan.h"
#include "async_copy.cuh"
#include "cluster.cuh"
#include "fft_order.cuh"
#include "l2_policy.h"
#include "pdl.cuh"
#include "split_tf32.cuh"
#include "wgmma.cuh"

namespace turbofno {
namespace {

struct BatchedArguments {
    const float2 *in, *weight;
    const uint4 *in_table, *out_table;
    float2 *out;
    int64_t batch, in_pitch, out_pitch;
    int channels, rows, out_rows, kept, others, modes, row_modes;
    bool weights_settled;
    BatchedSpectralPlan plan;
};

#ifdef TURBOFNO_WGMMA_ENABLED

constexpr int kChunk = 8; // steps of 4 channels whose weights a lane holds at once; channels are whole chunks
constexpr unsigned kStepWords = 128; // 16-byte words of a step of a table: the high parts, then the low parts
constexpr int kTableColumns = 4; // fragments of 8
constexpr int kHeld = kBatchedStages / 2; // pairs of steps

using Step = float4[2][32]; // 8 points of 16 columns: [4 points][8 pairs of columns], swizzled

// Where the pair of channels of a point of 4 lies: neither the copies nor the reads of a warp have bank conflicts.
inline __device__ int swizzled(int point, int pair) { return point * 8 + (pair ^ (2 * point)); }

// Rows of a product over 8 terms: channels 2g and 2g + 1, terms t and t + 4.
template <bool SPLIT> struct OperandRows {
    uint32_t high[4], low[4];

    __device__ __forceinline__ void set(float first, float second, float first_of_4, float second_of_4) {
        const float values[4] = {first, second, first_of_4, second_of_4};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Tf32Parts parts = to_tf32<SPLIT>(values[i]);
            high[i] = parts.high;
            low[i] = parts.low;
        }
    }
};

// d = rows . table over STEPS steps, small products first. `table`: the lower half of the first step's descriptor.
template <bool SPLIT, int STEPS, int HELD>
__device__ __forceinline__ void start_transform(float (&d)[kTableColumns][4], const OperandRows<SPLIT> (&rows)[HELD], unsigned table) {
    constexpr unsigned kLow = kStepWords / 2;
    if constexpr (SPLIT) {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) wgmma_tf32(d, rows[i].low, table + i * kStepWords, i > 0);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) wgmma_tf32(d, rows[i].high, table + i * kStepWords + kLow, true);
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) wgmma_tf32(d, rows[i].high, table + i * kStepWords, SPLIT || i > 0);
}

// The same of real and imaginary parts.
template <bool SPLIT, int STEPS, int HELD>
__device__ __forceinline__ void transform(float (&d)[2][kTableColumns][4], const OperandRows<SPLIT> (&re)[HELD],
                                          const OperandRows<SPLIT> (&im)[HELD], unsigned table) {
    wgmma_fence();
    start_transform<SPLIT, STEPS>(d[0], re, table);
    start_transform<SPLIT, STEPS>(d[1], im, table);
    wgmma_commit();
    wgmma_wait(d[0]);
    wgmma_wait(d[1]);
}

// Two products of 8 terms, from zero, added to the sums in float32; small ones first.
template <bool SPLIT>
__device__ __forceinline__ void add_products(float (&sum)[4], const OperandRows<SPLIT> (&a)[2], const Tf32Parts (&first)[2],
                                             const Tf32Parts (&second)[2]) {
    float part[4] = {};
#pragma unroll
    for (int product = SPLIT ? 0 : 2; product < 3; ++product) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t b[2] = {product == 1 ? first[i].low : first[i].high, product == 1 ? second[i].low : second[i].high};
            mma(part, product == 0 ? a[i].low : a[i].high, b);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] += part[e];
}

__device__ __forceinline__ float4 read_weights(const float2 *from) {
    float4 w; // in assembly, so that the compiler does not move the load behind cluster_wait; used once, so not kept in L1
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(w.x), "=f"(w.y), "=f"(w.z), "=f"(w.w)
                 : "l"(from));
    return w;
}

__device__ __forceinline__ void copy_table(uint4 *to, const uint4 *from, int words) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(to + i, from + i, true);
}

template <bool SPLIT>
__global__ void __launch_bounds__(32 * kBatchTile, 2) batched_spectral_kernel(const __grid_constant__ BatchedArguments a) {
    extern __shared__ __align__(128) char shared[];
    const BatchedSpectralPlan &p = a.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int rank = cluster_rank();
    const unsigned here = shared_address(shared);
    constexpr unsigned kTransformed = 0, kProducts = 8; // mbarriers
    auto *const z = reinterpret_cast<const float2 *>(shared + p.z_at), *const y = reinterpret_cast<const float2 *>(shared + p.y_at);
    auto *const table = reinterpret_cast<uint4 *>(shared + p.table_at);
    // in a cluster the upper bits of a shared address name the block; descriptors have 18 bits
    const unsigned descriptor = descriptor_low((here + p.table_at) & 0x3ffff, kTableColumns * kMatrixBytes);

    unsigned cluster = blockIdx.x / p.cluster;
    const int mode = int(cluster % a.row_modes);
    cluster /= a.row_modes;
    const int other = int(cluster % a.others);
    const int64_t b = int64_t(cluster / a.others) * kBatchTile + warp; // this warp's batch element
    const bool exists = b < a.batch;
    const int64_t stride = int64_t(a.row_modes) * a.channels; // from one row to the next
    const int64_t column = int64_t(mode) * a.channels + rank * kSliceChannels;
    const int first = rank * p.mode_share, kept = max(0, min(p.mode_share, a.kept - first)); // this block's modes of the first axis

    if (threadIdx.x == 0) {
        for (unsigned barrier : {kTransformed, kProducts}) init_barrier(here + barrier, 1);
        arrive_and_expect(here + kTransformed, kept * kBatchTile * a.channels * 8);
        arrive_and_expect(here + kProducts, a.kept * kBatchTile * kSliceChannels * 8);
    }
    __syncwarp();
    cluster_arrive();
    if (!a.weights_settled) pdl_wait();
    copy_table(table, a.in_table, p.in_table_words);
    commit_copies();
    pdl_wait();

    // A warp multiplies for one block; its weights: 16 output channels of a mode, two of them a lane, of every fourth input channel.
    const int to = warp % p.cluster, groups = kBatchTile / p.cluster;
    int k = warp / p.cluster; // of this block's modes
    const int64_t matrix = int64_t(a.channels) * a.channels, of_k = int64_t(a.others) * a.modes * matrix;
    const bool multiplies = mode < a.modes; // else the row's last mode has no weight
    const float2 *weight = a.weight + (int64_t(first + k) * a.others + other) * a.modes * matrix + mode * matrix + t * a.channels +
                           to * kSliceChannels + 2 * g;
    float4 weights[kChunk];

    { // transform
        auto *const ring = reinterpret_cast<Step *>(shared + p.y_at) + warp * kBatchedStages;
        const int point = lane / 8, pair = lane % 8; // this lane copies columns 2 pair, 2 pair + 1 of every fourth point
        const float2 *from = a.in + other * a.in_pitch + (exists ? b : 0) * a.rows * stride + column + 2 * pair;
        const int left = exists ? a.rows - point : 0;
        const auto copy = [&](int pair_of_steps, int slot) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 16 * pair_of_steps + 4 * i;
                const bool inside = at < left;
                copy_async<16>(&ring[2 * slot + i / 2][i % 2][swizzled(point, pair)],
                               inside ? from + int64_t(at + point) * stride : a.in, inside, kEvictFirst);
            }
            commit_copies();
        };
        const int pairs = p.steps / 2;
#pragma unroll
        for (int n = 0; n < kHeld - 1; ++n) {
            if (n < pairs) {
                copy(n, n);
            } else {
                commit_copies();
            }
        }
        wait_copies<kHeld - 1>();
        fence_proxy_async();
        __syncthreads(); // the table has arrived
        float sum[2][kTableColumns][4] = {}; // of real, imaginary parts
        int slot = 0;
#pragma unroll 1
        for (int n = 0; n < pairs; ++n) {
            wait_copies<kHeld - 2>();
            __syncwarp(); // these points have arrived; those overwritten next have been read
            const int following = n + kHeld - 1;
            if (following < pairs) {
                copy(following, slot == 0 ? kHeld - 1 : slot - 1);
            } else {
                commit_copies();
            }
            OperandRows<SPLIT> re[2], im[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Step &step = ring[2 * slot + i];
                const float4 v = step[0][swizzled(t, g)], w = step[1][swizzled(t, g)];
                re[i].set(v.x, v.z, w.x, w.z);
                im[i].set(v.y, v.w, w.y, w.w);
            }
            float part[2][kTableColumns][4];
            transform<SPLIT, 2>(part, re, im, descriptor + 2 * n * kStepWords);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int f = 0; f < kTableColumns; ++f) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i][f][e] += part[i][f][e];
                }
            }
            if (++slot == kHeld) slot = 0;
        }
        if (multiplies && k < kept) {
#pragma unroll
            for (int i = 0; i < kChunk; ++i) weights[i] = read_weights(weight + 4 * i * a.channels);
        }
        cluster_wait(); // all barriers of the cluster are initialised
        const int of_lane = warp * p.z_batch + rank * kSliceChannels + 2 * g;
        const auto put = [&](int k, float4 value) {
            const int owner = p.share.quotient(k), place = (k - owner * p.mode_share) * kBatchTile * p.z_batch + of_lane;
            const unsigned there = address_in(here, owner);
            store_async(there + p.z_at + 8 * place, value, there + kTransformed);
        };
        const auto &re = sum[0], &im = sum[1];
#pragma unroll
        for (int f = 0; f < 2; ++f) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = 8 * f + 2 * t + e, s = f + 2, o = e + 2; // o: of the other channel
                if (has_positive(k, a.kept)) {
                    put(k, {re[f][e] - im[s][e], im[f][e] + re[s][e], re[f][o] - im[s][o], im[f][o] + re[s][o]});
                }
                if (has_negative(k, a.kept)) {
                    put(a.kept - k, {re[f][e] + im[s][e], im[f][e] - re[s][e], re[f][o] + im[s][o], im[f][o] - re[s][o]});
                }
            }
        }
    }

    __syncthreads(); // all warps have read their columns and the table

    // multiply
    const unsigned there = address_in(here, to), of_lane = there + p.y_at + 8 * (2 * t * p.y_batch + 2 * g);
    wait_for(here + kTransformed, 0);
    copy_table(table, a.out_table, p.out_table_words);
    commit_copies();
#pragma unroll 1
    for (; k < kept; k += groups) {
        float sum[2][4] = {};
        if (multiplies) {
            const float2 *of_b = z + (k * kBatchTile + g) * p.z_batch + t;
            const float2 *following = weight + groups * of_k;
#pragma unroll 1
            for (int c = 0; c < a.channels; c += 4 * kChunk, of_b += 4 * kChunk) {
                const bool last = c + 4 * kChunk == a.channels;
                const float2 *next = last ? following : weight + (c + 4 * kChunk) * a.channels;
                const bool reads = !last || k + groups < kept;
#pragma unroll
                for (int i = 0; i < kChunk; i += 2) {
                    OperandRows<SPLIT> w[2];
                    Tf32Parts re[2], im[2], minus_im[2];
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        const float2 in = of_b[4 * (i + n)];
                        re[n] = to_tf32<SPLIT>(in.x);
                        im[n] = to_tf32<SPLIT>(in.y);
                        minus_im[n] = {negative(im[n].high), negative(im[n].low)};
                        const float4 of = weights[i + n];
                        w[n].set(of.x, of.z, of.y, of.w);
                    }
                    add_products<SPLIT>(sum[0], w, re, minus_im);
                    add_products<SPLIT>(sum[1], w, im, re);
                    if (reads) {
                        weights[i] = read_weights(next + 4 * i * a.channels);
                        weights[i + 1] = read_weights(next + 4 * (i + 1) * a.channels);
                    }
                }
            }
            weight = following;
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) { // channels 2g and 2g + 1 of batch element 2t + e
            const unsigned at = of_lane + 8 * ((first + k) * p.y_mode + e * p.y_batch);
            store_async(at, float4{sum[0][e], sum[1][e], sum[0][e + 2], sum[1][e + 2]}, there + kProducts);
        }
    }
    wait_copies<0>();
    fence_proxy_async();
    __syncthreads(); // the table has arrived
    wait_for(here + kProducts, 0);
    pdl_trigger();

    // inverse
    const float2 *of_b = y + warp * p.y_batch + 2 * g;
    const auto term = [&](bool there, int k) {
        return there ? *reinterpret_cast<const float4 *>(of_b + k * p.y_mode) : float4{};
    };
    constexpr int kSteps = 2 * kBatchedFrequencies / 8;
    OperandRows<SPLIT> re[kSteps], im[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
        float4 u[2], v[2]; // of cosines, of sines
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int k = 8 * i + 4 * e + t;
            const float4 positive = term(has_positive(k, a.kept), k), negative = term(has_negative(k, a.kept), a.kept - k);
            u[e] = {positive.x + negative.x, positive.y + negative.y, positive.z + negative.z, positive.w + negative.w};
            v[e] = {positive.x - negative.x, positive.y - negative.y, positive.z - negative.z, positive.w - negative.w};
        }
        re[2 * i].set(u[0].x, u[0].z, u[1].x, u[1].z);
        im[2 * i].set(u[0].y, u[0].w, u[1].y, u[1].w);
        re[2 * i + 1].set(-v[0].y, -v[0].w, -v[1].y, -v[1].w);
        im[2 * i + 1].set(v[0].x, v[0].z, v[1].x, v[1].z);
    }
    int n = 2 * t;
    const int left = exists ? a.out_rows : 0;
    float2 *out = a.out + other * a.out_pitch + (exists ? b : 0) * a.out_rows * stride + n * stride + column + 2 * g;
    const auto put_all = [&](auto steps) {
        constexpr int STEPS = decltype(steps)::value;
#pragma unroll 1
        for (int chunk = 0; chunk < p.out_chunks; ++chunk) {
            float part[2][kTableColumns][4];
            transform<SPLIT, STEPS>(part, re, im, descriptor + chunk * STEPS * kStepWords);
#pragma unroll
            for (int f = 0; f < kTableColumns; ++f, n += 8, out += 8 * stride) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float4 value{part[0][f][e], part[1][f][e], part[0][f][e + 2], part[1][f][e + 2]};
                    if (n + e < left) *reinterpret_cast<float4 *>(out + e * stride) = value;
                }
            }
        }
    };
    if (p.out_groups == 1) {
        put_all(std::integral_constant<int, kSteps / 2>{});
    } else {
        put_all(std::integral_constant<int, kSteps>{});
    }
}

#else

// Refused: the device has no wgmma.
template <bool SPLIT> __global__ void batched_spectral_kernel(const BatchedArguments) {}

#endif

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_batched_spectral_product(const turbofno_batched_spectral *s, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_batched_spectral_unsupported(s) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (s->input == nullptr || s->weight == nullptr || s->out == nullptr || s->in_table == nullptr || s->out_table == nullptr) {
        return TURBOFNO_NULL_POINTER;
    }
    BatchedArguments a{};
    a.in = reinterpret_cast<const float2 *>(s->input);
    a.weight = reinterpret_cast<const float2 *>(s->weight);
    a.in_table = static_cast<const uint4 *>(s->in_table);
    a.out_table = static_cast<const uint4 *>(s->out_table);
    a.out = reinterpret_cast<float2 *>(s->out);
    a.batch = s->batch;
    a.in_pitch = s->in_pitch;
    a.out_pitch = s->out_pitch;
    a.channels = s->channels;
    a.rows = s->rows;
    a.out_rows = s->out_rows;
    a.kept = s->kept;
    a.others = s->others;
    a.modes = s->modes;
    a.row_modes = s->row_modes;
    a.weights_settled = s->weights_settled != 0;
    a.plan = plan(*s);
    const auto kernel = s->precision == TURBOFNO_FP32 ? batched_spectral_kernel<true> : batched_spectral_kernel<false>;
    allow_shared_memory(kernel, s->shared_bytes);
    return launch_pdl(kernel, dim3(unsigned(a.plan.clusters * a.plan.cluster)), 32 * kBatchTile, size_t(a.plan.shared_bytes), stream, a,
                      a.plan.cluster);
}
