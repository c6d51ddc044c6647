// A row's spectra, both ways: the mixed ones on their way into shared memory and into a tile's values, and the sums of the
// next analysis, by lanes or by a warpgroup, on their way out.
#pragma once

#include "b_operand.cuh"
#include "tile_fields.cuh"

namespace turbofno {
namespace {

// A register, where the compiler would rather ask for threadIdx again and again, and wait.
__device__ __forceinline__ int lane_index() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

struct Team {
    int index, size, member, lane;

    __device__ __forceinline__ void wait() const {
        if (size == 1) {
            __syncwarp();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(size * kLanes) : "memory");
        }
    }
};

__device__ __forceinline__ int channel_of(int fragment, int column) { // of 16 channels, from the first
    return 4 * (column / 2) + column % 2 + 2 * (fragment % 2);
}

// A row's mixed spectra as a B operand: terms (re, im, re, im, ..) of its modes, columns the channels.
template <typename P, typename B>
__device__ void stage_spectra(uint4 *to, const turbofno_tile &t, const Place &at, int pairs, int first_channel,
                              const Team &team) {
    const int g = team.lane / 4, lane_mode = team.lane % 4;
    const int blocks = ceil_div(2 * t.modes, 32) * pairs;
    float *backs = backs_of<P>(to, 2 * t.modes, pairs);
    const int64_t stride = t.outer * t.modes; // from one channel to the next
    const auto *from = reinterpret_cast<const float2 *>(t.mixed) + (int64_t(at.b) * t.channels * t.outer + at.o) * t.modes;
    for (int block = team.member; block < blocks; block += team.size) {
        const int chunk = block / pairs, pair = block - chunk * pairs;
        const int mode = 16 * chunk + lane_mode, channel = first_channel + 16 * pair + channel_of(0, g);
        const float2 *const of_fragment[2] = {from + channel * stride + mode, from + (channel + 2) * stride + mode};
        float2 z[2][2][2]; // step, fragment, first or second register
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int step = i / 4, fragment = i / 2 % 2, further = 8 * step + 4 * (i % 2);
            float2 value{0.0f, 0.0f};
            if (mode + further < t.modes && channel + 2 * fragment < t.channels) value = of_fragment[fragment][further];
            z[step][fragment][i % 2] = value;
            most = largest(largest(most, value.x), value.y);
        }
        Scale scale{1.0f, 1.0f};
        if constexpr (P::kScaled) scale = scale_of(largest_of_lanes<1, 32>(most));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 value = z[step][i / 2][i % 2];
                split<P>(value.x, value.y, scale.to, high[i], low[i]);
            }
            WordPlace place{chunk, step, pair, 0, team.lane};
            B::put(to, pairs, place, {high[0], high[1], high[2], high[3]});
            place.plane = 1;
            if constexpr (P::kSplit) B::put(to, pairs, place, {low[0], low[1], low[2], low[3]});
        }
        if (team.lane == 0) backs[block] = scale.back;
    }
}

// A table's words: in shared memory or through L1.
struct Table {
    const uint4 *shared, *global;
    bool on_chip;

    __device__ __forceinline__ uint4 word(int at) const { return on_chip ? shared[at] : __ldg(global + at); }
};

template <typename P, int FRAGMENTS, typename B>
__device__ __forceinline__ void synthesize(float (&values)[FRAGMENTS][4], const Table &table, int tile, int chunks,
                                           const B &spectra, float table_back, int lane) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Operand<P> a;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const int at = ((tile * chunks + chunk) * 2 + step) * (P::kPlanes * kLanes) + lane;
            const uint4 h = table.word(at);
            a.high[step][0] = h.x, a.high[step][1] = h.y, a.high[step][2] = h.z, a.high[step][3] = h.w;
            if constexpr (P::kSplit) {
                const uint4 l = table.word(at + kLanes);
                a.low[step][0] = l.x, a.low[step][1] = l.y, a.low[step][2] = l.z, a.low[step][3] = l.w;
            }
        }
        a.back[0] = a.back[1] = table_back;
        spectra.add(values, a, chunk, 0);
    }
}

// Points that do not exist have whatever values were there; an analysis takes them for zero.
template <int FRAGMENTS>
__device__ __forceinline__ void zero_behind(float (&values)[FRAGMENTS][4], int point, int points) {
#pragma unroll
    for (auto &fragment : values) {
        if (point >= points) fragment[0] = fragment[1] = 0.0f;
        if (point + 8 >= points) fragment[2] = fragment[3] = 0.0f;
    }
}

// The next analysis: sums += y^T . table over the tile's points. Rows of the product are channels, columns cos and sin.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void analyze(float4 *sums, const float (&values)[FRAGMENTS][4], const Table &table, int tile,
                                        int columns, float table_back, bool first, int lane) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) scale = scale_of(largest_of(values));
    const float back = scale.back * table_back;
    const int pairs = ceil_div(columns, 2);
    constexpr int kTogether = FRAGMENTS < 4 ? 1 : 2; // of 16 channels
#pragma unroll
    for (int m0 = 0; m0 < FRAGMENTS / 2; m0 += kTogether) {
        uint32_t high[kTogether][4], low[kTogether][4];
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
#pragma unroll
            for (int r = 0; r < 4; ++r) { // rows of fragment r % 2, points of half r / 2
                const float *pair = &values[2 * (m0 + m) + r % 2][2 * (r / 2)];
                split<P>(pair[0], pair[1], scale.to, high[m][r], low[m][r]);
                high[m][r] = transposed(high[m][r]);
                if constexpr (P::kSplit) low[m][r] = transposed(low[m][r]);
            }
        }
        const int at = tile * pairs * (P::kPlanes * kLanes) + lane;
        float4 *to = sums + m0 * columns * kLanes + lane;
        const auto add = [&](int n, uint32_t h0, uint32_t h1, uint32_t l0, uint32_t l1) {
            float part[kTogether][4] = {};
            if constexpr (P::kSplit) {
#pragma unroll
                for (int m = 0; m < kTogether; ++m) multiply_add<P>(part[m], low[m], h0, h1);
#pragma unroll
                for (int m = 0; m < kTogether; ++m) multiply_add<P>(part[m], high[m], l0, l1);
            }
#pragma unroll
            for (int m = 0; m < kTogether; ++m) multiply_add<P>(part[m], high[m], h0, h1);
#pragma unroll
            for (int m = 0; m < kTogether; ++m) {
                float4 *sum = to + (m * columns + n) * kLanes;
                const float4 before = first ? float4{} : *sum;
                const float(&p)[4] = part[m];
                *sum = {fmaf(p[0], back, before.x), fmaf(p[1], back, before.y), fmaf(p[2], back, before.z),
                        fmaf(p[3], back, before.w)};
            }
        };
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
            const uint4 h = table.word(at + pair * (P::kPlanes * kLanes));
            uint4 l{};
            if constexpr (P::kSplit) l = table.word(at + pair * (P::kPlanes * kLanes) + kLanes);
            add(2 * pair, h.x, h.y, l.x, l.y);
            if (2 * pair + 1 < columns) add(2 * pair + 1, h.z, h.w, l.z, l.w);
        }
    }
}

// The sums of a team's warps as the row's spectra.
template <int FRAGMENTS>
__device__ __forceinline__ void write_spectra(float2 *to, const float4 *sums, int sums_words, const turbofno_tile &t,
                                              int columns, int first_channel, const Team &team) {
    const int mode0 = team.lane % 4, channel0 = first_channel + channel_of(0, team.lane / 4);
    const int64_t stride = t.outer * t.next_modes; // from one channel to the next
    to += channel0 * stride + mode0;
    int m = 0, n = team.member;
    for (const float4 *from = sums + team.member * kLanes + team.lane; m < FRAGMENTS / 2;
         from += team.size * kLanes, n += team.size) {
        while (n >= columns) n -= columns, ++m;
        if (m >= FRAGMENTS / 2) break;
        float4 sum = *from;
        for (int other = 1; other < team.size; ++other) {
            const float4 more = from[other * sums_words];
            sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        if (4 * n + mode0 >= t.next_modes) continue;
        float2 *at = to + 16 * m * stride + 4 * n;
        if (channel0 + 16 * m < t.channels) *at = {sum.x, sum.y};
        if (channel0 + 16 * m + 2 < t.channels) at[2 * stride] = {sum.z, sum.w};
    }
}

// The same analysis by a warpgroup: y of all its 64 points goes to shared memory once, where the tensor cores read it
// turned, channels as rows; the row's sums stay in registers. A lane has the modes 4n + t of the channels 16 member + g
// and + 8 of each 64.
template <typename P, int FRAGMENTS> struct GroupSums {
    static constexpr int kBlocks = FRAGMENTS < 8 ? 1 : FRAGMENTS / 8, kColumns = kGroupColumns; // 64 channels a block
    float sums[kBlocks][kColumns][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto &block : sums) {
#pragma unroll
            for (auto &fragment : block) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
        }
    }

    // `staging` begins with the largest magnitudes of the four warps' values; `table` holds the row's B operands.
    __device__ __forceinline__ void add(const float (&values)[FRAGMENTS][4], uint4 *staging, const uint4 *table, int first_tile,
                                        float table_back, const Team &team) {
        constexpr int kPlane = 8 * FRAGMENTS * kMatrixBytes, kTile = P::kPlanes * 2 * kColumns * kMatrixBytes;
        auto *maxima = reinterpret_cast<float *>(staging);
        const unsigned matrices = shared_address(staging + 1), g = team.lane / 4, t = team.lane % 4;
        if constexpr (P::kScaled) {
            const float most = largest_of(values);
            if (team.lane == 0) maxima[team.member] = most;
        }
        team.wait(); // nobody multiplies what was here
        Scale scale{1.0f, 1.0f};
        if constexpr (P::kScaled) {
            const float4 m = *reinterpret_cast<const float4 *>(maxima);
            scale = scale_of(largest(largest(largest(m.x, m.y), m.z), m.w));
        }
#pragma unroll
        for (int s = 0; s < FRAGMENTS / 2; ++s) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
                uint2 high, low;
                split<P>(even[0], even[1], scale.to, high.x, low.x);
                split<P>(odd[0], odd[1], scale.to, high.y, low.y);
                const int matrix = (2 * team.member + second) * FRAGMENTS + 2 * s + t / 2;
                auto *to = reinterpret_cast<char *>(staging + 1) + matrix * kMatrixBytes + 16 * g + 8 * (t % 2);
                *reinterpret_cast<uint2 *>(to) = high;
                if constexpr (P::kSplit) *reinterpret_cast<uint2 *>(to + kPlane) = low;
            }
        }
        show_to_products();
        team.wait();
        const unsigned a = descriptor(matrices, FRAGMENTS * kMatrixBytes);
        const unsigned b = descriptor(shared_address(table) + first_tile * kTile, kColumns * kMatrixBytes);
        const float back = scale.back * table_back;
        constexpr unsigned kLowA = kPlane / 16, kLowB = 2 * kColumns * kMatrixWords;
        constexpr unsigned kNextA = 2 * FRAGMENTS * kMatrixWords, kNextB = kTile / 16;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const unsigned rows = a + block * (8 * kMatrixWords);
            float part[kColumns][4];
            begin_products();
            if constexpr (P::kSplit) {
#pragma unroll
                for (int i = 0; i < kGroupWarps; ++i) multiply<P>(part, rows + kLowA + i * kNextA, b + i * kNextB, i > 0);
#pragma unroll
                for (int i = 0; i < kGroupWarps; ++i) multiply<P>(part, rows + i * kNextA, b + kLowB + i * kNextB, true);
            }
#pragma unroll
            for (int i = 0; i < kGroupWarps; ++i) multiply<P>(part, rows + i * kNextA, b + i * kNextB, P::kSplit || i > 0);
            finish_products(part);
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[block][n][e] = fmaf(part[n][e], back, sums[block][n][e]);
            }
        }
    }

    __device__ __forceinline__ void write(float2 *to, const turbofno_tile &t, int first_channel, const Team &team) const {
        const int mode0 = team.lane % 4, channel0 = first_channel + 16 * team.member + team.lane / 4;
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

// The words of an analysis table, tiles that do not exist as zeros, as GroupSums reads them.
template <typename P>
__device__ void copy_analysis(uint4 *to, const void *table, int tiles, int columns) {
    constexpr int kPairs = kGroupColumns / 2, kOfPair = P::kPlanes * kLanes;
    const int pairs = ceil_div(columns, 2), all = round_up(tiles, kGroupWarps);
    for (int i = threadIdx.x; i < all * kPairs * kOfPair; i += blockDim.x) {
        const int tile = i / (kPairs * kOfPair), rest = i - tile * (kPairs * kOfPair), pair = rest / kOfPair;
        const bool exists = tile < tiles && pair < pairs;
        const auto *from = static_cast<const uint4 *>(table) + (tile * pairs + pair) * kOfPair + rest % kOfPair;
        // a tile is one step of 16 terms
        const WordPlace at{tile / 2, tile % 2, pair, rest % kOfPair / kLanes, i % kLanes};
        GroupOperand<P>::put(to, kPairs, at, exists ? *from : uint4{});
    }
}

} // namespace
} // namespace turbofno
