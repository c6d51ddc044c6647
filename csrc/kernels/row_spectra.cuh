// The spectra of a row: the mixed ones, staged in shared memory and transformed to a tile's values, and the next analysis,
// accumulated by mma.sync or wgmma and written out.
#pragma once

#include "b_operand.cuh"
#include "tile_fields.cuh"

namespace turbofno {
namespace {

// Keeps the lane in a register: the compiler would otherwise read threadIdx again at every use, which stalls.
__device__ __forceinline__ int lane_index() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane & 31; // a range that the compiler knows
}

// The warps that share a row: the group's index in the block, its warps, this warp's rank in it, this thread's lane.
struct WarpGroupContext {
    int index, size, rank, lane;

    __device__ __forceinline__ void sync() const {
        if (size == 1) {
            __syncwarp();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(size * kLanes) : "memory");
        }
    }
};

// Channel of a column, relative to the first of 16 channels (warp_mma.cuh).
__device__ __forceinline__ int channel_of(int fragment, int column) {
    return 4 * (column / 2) + column % 2 + 2 * (fragment % 2);
}

__device__ __forceinline__ float2 times(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

// Stages a row's mixed spectra, times the phases of a segment unless null, as a B operand. Its K index (terms) runs over
// (re, im) of every mode, its N index (columns) over channels. A `block` is 32 terms by 16 columns with one scale.
template <typename P, typename B>
__device__ void stage_spectra(uint4 *to, const turbofno_tile &t, const TilePosition &at, const float2 *phases, int pairs,
                              int first_channel, const WarpGroupContext &group) {
    const int g = group.lane / 4, lane_mode = group.lane % 4;
    const int blocks = ceil_div(2 * t.modes, 32) * pairs;
    float *inv_scales = inv_scales_of<P>(to, 2 * t.modes, pairs);
    const int64_t stride = t.outer * t.modes; // from one channel to the next
    const auto *from = reinterpret_cast<const float2 *>(t.mixed) + (int64_t(at.b) * t.channels * t.outer + at.o) * t.modes;
    for (int block = group.rank; block < blocks; block += group.size) {
        const int chunk = block / pairs, pair = block - chunk * pairs;
        const int mode = 16 * chunk + lane_mode, channel = first_channel + 16 * pair + channel_of(0, g);
        const float2 *const of_fragment[2] = {from + channel * stride + mode, from + (channel + 2) * stride + mode};
        float2 z[2][2][2]; // step, fragment, first or second register
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int step = i / 4, fragment = i / 2 % 2, further = 8 * step + 4 * (i % 2);
            float2 value{0.0f, 0.0f};
            if (mode + further < t.modes && channel + 2 * fragment < t.channels) {
                value = of_fragment[fragment][further];
                if (phases != nullptr) value = times(value, __ldg(phases + mode + further));
            }
            z[step][fragment][i % 2] = value;
            most = max_magnitude(max_magnitude(most, value.x), value.y);
        }
        Scale scale{1.0f, 1.0f};
        if constexpr (P::kScaled) scale = scale_of(max_over_lanes<1, 32>(most));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 value = z[step][i / 2][i % 2];
                split<P>(value.x, value.y, scale.factor, high[i], low[i]);
            }
            WordIndex place{chunk, step, pair, 0, group.lane};
            B::put(to, pairs, place, {high[0], high[1], high[2], high[3]});
            place.plane = 1;
            if constexpr (P::kSplit) B::put(to, pairs, place, {low[0], low[1], low[2], low[3]});
        }
        if (group.lane == 0) inv_scales[block] = scale.inverse;
    }
}

// values += table . spectra over the first 16 STEPS terms of a chunk, for the points of a tile. `table` is the lane's first
// word, in shared memory or, if not ON_CHIP, in global memory and read through L1.
template <int STEPS, bool ON_CHIP, typename P, int FRAGMENTS, typename B>
__device__ __forceinline__ void synthesize_chunk(float (&values)[FRAGMENTS][4], const uint4 *table, int chunk, const B &spectra,
                                                 float table_inv_scale) {
    const auto word = [&](int at) { return ON_CHIP ? table[at] : __ldg(table + at); };
    OperandA<P> a;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const uint4 h = word(step * (P::kPlanes * kLanes));
        a.high[step][0] = h.x, a.high[step][1] = h.y, a.high[step][2] = h.z, a.high[step][3] = h.w;
        if constexpr (P::kSplit) {
            const uint4 l = word(step * (P::kPlanes * kLanes) + kLanes);
            a.low[step][0] = l.x, a.low[step][1] = l.y, a.low[step][2] = l.z, a.low[step][3] = l.w;
        }
    }
    a.inv_scale[0] = a.inv_scale[1] = table_inv_scale;
    spectra.add(values, a, chunk, 0, STEPS);
}

// Inverse DFT: values += table . spectra for the points of a tile of a segment.
template <bool ON_CHIP, typename P, int FRAGMENTS, typename B>
__device__ __forceinline__ void synthesize(float (&values)[FRAGMENTS][4], const uint4 *table, int tile, int terms,
                                           const B &spectra, float table_inv_scale, int lane) {
    constexpr int kChunkWords = 2 * P::kPlanes * kLanes;
    const int chunks = ceil_div(terms, 32);
    int chunk = 0;
    table += tile * chunks * kChunkWords + lane;
#pragma unroll 1
    for (; 32 * chunk + 16 < terms; ++chunk, table += kChunkWords) {
        synthesize_chunk<2, ON_CHIP, P>(values, table, chunk, spectra, table_inv_scale);
    }
    if (chunk < chunks) synthesize_chunk<1, ON_CHIP, P>(values, table, chunk, spectra, table_inv_scale);
}

// Zeroes the points beyond the row's end: their values are undefined, and the analysis sums over all points of a tile.
template <int FRAGMENTS>
__device__ __forceinline__ void zero_behind(float (&values)[FRAGMENTS][4], int point, int points) {
#pragma unroll
    for (auto &fragment : values) {
        if (point >= points) fragment[0] = fragment[1] = 0.0f;
        if (point + 8 >= points) fragment[2] = fragment[3] = 0.0f;
    }
}

// The phases of the modes of an analysis in a segment; null where a segment is a row.
struct SegmentPhases {
    const float2 *phases;
    int modes;

    // Divides what a lane has of the sums of 8 columns (4 modes) by their phases.
    __device__ __forceinline__ void divide(float (&sum)[4], int columns, int lane) const {
        if (phases == nullptr) return;
        const int mode = 4 * columns + lane % 4;
        const float2 phase = __ldg(phases + min(mode, modes - 1)), conjugate{phase.x, -phase.y};
        const float2 first = times({sum[0], sum[1]}, conjugate), second = times({sum[2], sum[3]}, conjugate);
        sum[0] = first.x, sum[1] = first.y, sum[2] = second.x, sum[3] = second.y;
    }
};

// Truncated DFT for the next spectral product: sums += y^T . table over the points of a tile of a segment. M is channels, N
// cosines and sines; `columns` counts fragments of 8 (4 modes). `first`: the sums are not initialised yet.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void analyze(float4 *sums, const float (&values)[FRAGMENTS][4], const uint4 *table, int tile,
                                        int columns, float table_inv_scale, const SegmentPhases &phases, bool first, int lane) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) scale = scale_of(max_of_warp(values));
    const float inv_scale = scale.inverse * table_inv_scale;
    const int pairs = ceil_div(columns, 2);
    constexpr int kUnroll = FRAGMENTS < 4 ? 1 : 2; // blocks of 16 channels
#pragma unroll
    for (int m0 = 0; m0 < FRAGMENTS / 2; m0 += kUnroll) {
        uint32_t high[kUnroll][4], low[kUnroll][4];
#pragma unroll
        for (int m = 0; m < kUnroll; ++m) {
#pragma unroll
            for (int r = 0; r < 4; ++r) { // rows of fragment r % 2, points of half r / 2
                const float *pair = &values[2 * (m0 + m) + r % 2][2 * (r / 2)];
                split<P>(pair[0], pair[1], scale.factor, high[m][r], low[m][r]);
                high[m][r] = transpose_8x8(high[m][r]);
                if constexpr (P::kSplit) low[m][r] = transpose_8x8(low[m][r]);
            }
        }
        const uint4 *at = table + tile * pairs * (P::kPlanes * kLanes) + lane;
        float4 *to = sums + m0 * columns * kLanes + lane;
        const auto add = [&](int n, uint32_t h0, uint32_t h1, uint32_t l0, uint32_t l1) {
            float part[kUnroll][4] = {};
            if constexpr (P::kSplit) {
#pragma unroll
                for (int m = 0; m < kUnroll; ++m) mma<P>(part[m], low[m], h0, h1);
#pragma unroll
                for (int m = 0; m < kUnroll; ++m) mma<P>(part[m], high[m], l0, l1);
            }
#pragma unroll
            for (int m = 0; m < kUnroll; ++m) mma<P>(part[m], high[m], h0, h1);
#pragma unroll
            for (int m = 0; m < kUnroll; ++m) {
                float4 *sum = to + (m * columns + n) * kLanes;
                const float4 before = first ? float4{} : *sum;
                float(&p)[4] = part[m];
                phases.divide(p, n, lane);
                *sum = {fmaf(p[0], inv_scale, before.x), fmaf(p[1], inv_scale, before.y), fmaf(p[2], inv_scale, before.z),
                        fmaf(p[3], inv_scale, before.w)};
            }
        };
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
            const uint4 h = at[pair * (P::kPlanes * kLanes)];
            uint4 l{};
            if constexpr (P::kSplit) l = at[pair * (P::kPlanes * kLanes) + kLanes];
            add(2 * pair, h.x, h.y, l.x, l.y);
            if (2 * pair + 1 < columns) add(2 * pair + 1, h.z, h.w, l.z, l.w);
        }
    }
}

// Adds the sums of a group's warps and writes them as the row's spectra. `columns` as in `analyze`.
template <int FRAGMENTS>
__device__ __forceinline__ void write_spectra(float2 *to, const float4 *sums, int sums_words, const turbofno_tile &t,
                                              int columns, int first_channel, const WarpGroupContext &group) {
    const int mode0 = group.lane % 4, channel0 = first_channel + channel_of(0, group.lane / 4);
    const int64_t stride = t.outer * t.next_modes; // from one channel to the next
    to += channel0 * stride + mode0;
    int m = 0, n = group.rank;
    for (const float4 *from = sums + group.rank * kLanes + group.lane; m < FRAGMENTS / 2;
         from += group.size * kLanes, n += group.size) {
        while (n >= columns) n -= columns, ++m;
        if (m >= FRAGMENTS / 2) break;
        float4 sum = *from;
        for (int other = 1; other < group.size; ++other) {
            const float4 more = from[other * sums_words];
            sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        if (4 * n + mode0 >= t.next_modes) continue;
        float2 *at = to + 16 * m * stride + 4 * n;
        if (channel0 + 16 * m < t.channels) *at = {sum.x, sum.y};
        if (channel0 + 16 * m + 2 < t.channels) at[2 * stride] = {sum.z, sum.w};
    }
}

// The same analysis with wgmma. The 64 points of a warpgroup go to shared memory once, and wgmma reads them transposed,
// channels as rows. The row's sums stay in registers: in each block of
// 64 channels, lane (g, t) has the modes 4n + t of the channels 16 rank + g and 16 rank + g + 8.
template <typename P, int FRAGMENTS> struct WgmmaSums {
    static constexpr int kBlocks = FRAGMENTS < 8 ? 1 : FRAGMENTS / 8, kColumns = kWgmmaColumns; // 64 channels a block
    float sums[kBlocks][kColumns][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto &block : sums) {
#pragma unroll
            for (auto &fragment : block) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
        }
    }

    // `staging` begins with the largest magnitude of each of the four warps; `table` holds the segment's B operands.
    __device__ __forceinline__ void add(const float (&values)[FRAGMENTS][4], uint4 *staging, const uint4 *table, int first_tile,
                                        float table_inv_scale, const SegmentPhases &phases, const WarpGroupContext &group) {
        constexpr int kPlane = 8 * FRAGMENTS * kMatrixBytes, kTile = P::kPlanes * 2 * kColumns * kMatrixBytes;
        auto *maxima = reinterpret_cast<float *>(staging);
        const unsigned matrices = shared_address(staging + 1), g = group.lane / 4, t = group.lane % 4;
        if constexpr (P::kScaled) {
            const float most = max_of_warp(values);
            if (group.lane == 0) maxima[group.rank] = most;
        }
        group.sync(); // all warps have finished the wgmma that read the staged values, which are overwritten now
        Scale scale{1.0f, 1.0f};
        if constexpr (P::kScaled) {
            const float4 m = *reinterpret_cast<const float4 *>(maxima);
            scale = scale_of(max_magnitude(max_magnitude(max_magnitude(m.x, m.y), m.z), m.w));
        }
#pragma unroll
        for (int s = 0; s < FRAGMENTS / 2; ++s) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
                uint2 high, low;
                split<P>(even[0], even[1], scale.factor, high.x, low.x);
                split<P>(odd[0], odd[1], scale.factor, high.y, low.y);
                const int matrix = (2 * group.rank + second) * FRAGMENTS + 2 * s + t / 2;
                auto *to = reinterpret_cast<char *>(staging + 1) + matrix * kMatrixBytes + 16 * g + 8 * (t % 2);
                *reinterpret_cast<uint2 *>(to) = high;
                if constexpr (P::kSplit) *reinterpret_cast<uint2 *>(to + kPlane) = low;
            }
        }
        fence_proxy_async();
        group.sync();
        const unsigned a = descriptor_low(matrices, FRAGMENTS * kMatrixBytes);
        const unsigned b = descriptor_low(shared_address(table) + first_tile * kTile, kColumns * kMatrixBytes);
        const float inv_scale = scale.inverse * table_inv_scale;
        constexpr unsigned kLowA = kPlane / 16, kLowB = 2 * kColumns * kMatrixWords;
        constexpr unsigned kNextA = 2 * FRAGMENTS * kMatrixWords, kNextB = kTile / 16;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const unsigned rows = a + block * (8 * kMatrixWords);
            float part[kColumns][4];
            wgmma_fence();
            if constexpr (P::kSplit) {
#pragma unroll
                for (int i = 0; i < kWarpgroupWarps; ++i) wgmma<P>(part, rows + kLowA + i * kNextA, b + i * kNextB, i > 0);
#pragma unroll
                for (int i = 0; i < kWarpgroupWarps; ++i) wgmma<P>(part, rows + i * kNextA, b + kLowB + i * kNextB, true);
            }
#pragma unroll
            for (int i = 0; i < kWarpgroupWarps; ++i) wgmma<P>(part, rows + i * kNextA, b + i * kNextB, P::kSplit || i > 0);
            wgmma_commit_and_wait(part);
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
                if constexpr (FRAGMENTS <= kSegmentedFragments) phases.divide(part[n], n, group.lane);
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[block][n][e] = fmaf(part[n][e], inv_scale, sums[block][n][e]);
            }
        }
    }

    __device__ __forceinline__ void write(float2 *to, const turbofno_tile &t, int first_channel,
                                          const WarpGroupContext &group) const {
        const int mode0 = group.lane % 4, channel0 = first_channel + 16 * group.rank + group.lane / 4;
        const int64_t stride = t.outer * t.next_modes; // from one channel to the next
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
                const int mode = 4 * n + mode0, channel = channel0 + 64 * block;
                if (mode >= t.next_modes) continue;
                const float(&v)[4] = sums[block][n];
                if (channel < t.channels) to[channel * stride + mode] = {v[0], v[1]};
                if (channel + 8 < t.channels) to[(channel + 8) * stride + mode] = {v[2], v[3]};
            }
        }
    }
};

// Copies an analysis table to shared memory in the layout that WgmmaSums reads. Tiles and columns that it lacks become zeros.
template <typename P>
__device__ void copy_analysis(uint4 *to, const void *table, int tiles, int columns) {
    constexpr int kPairs = kWgmmaColumns / 2, kOfPair = P::kPlanes * kLanes;
    const int pairs = ceil_div(columns, 2), all = round_up(tiles, kWarpgroupWarps);
    for (int i = threadIdx.x; i < all * kPairs * kOfPair; i += blockDim.x) {
        const int tile = i / (kPairs * kOfPair), rest = i - tile * (kPairs * kOfPair), pair = rest / kOfPair;
        const bool exists = tile < tiles && pair < pairs;
        const auto *from = static_cast<const uint4 *>(table) + (tile * pairs + pair) * kOfPair + rest % kOfPair;
        // one tile is one step of 16 terms
        const WordIndex at{tile / 2, tile % 2, pair, rest % kOfPair / kLanes, i % kLanes};
        WgmmaOperandB<P>::copy(to, kPairs, at, exists ? from : static_cast<const uint4 *>(table), exists);
    }
}

} // namespace
} // namespace turbofno
