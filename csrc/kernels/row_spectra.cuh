// The spectra of a row: the mixed ones, staged in shared memory and transformed to a tile's values, and the next analysis,
// accumulated by mma.sync or wgmma and written out.
#pragma once

#include "b_operand.cuh"
#include "complex.cuh"
#include "spectra_layout.cuh"
#include "tile_fields.cuh"

#include <type_traits>

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

// What a lane reads of a row's mixed spectra for a B operand, whose K index (terms) runs over (re, im) of every mode, its N
// index (columns) over channels. A `block` is 32 terms by 16 columns with one scale; the warps of a group take blocks in turn.
// A lane has eight values of a block: four modes of two channels.
struct SpectraBlock {
    int chunk, pair, mode, channel; // of this lane's first value

    __device__ __forceinline__ SpectraBlock(int block, int pairs, int first_channel, int lane)
        : chunk(block / pairs), pair(block - chunk * pairs), mode(16 * chunk + lane % 4),
          channel(first_channel + 16 * pair + channel_of(0, lane / 4)) {}

    static __device__ __forceinline__ int modes_on(int i) { return 8 * (i / 4) + 4 * (i % 2); }
    static __device__ __forceinline__ int channels_on(int i) { return i / 2 % 2 * 2; }

    // use(i, from, exists) for the eight values, of spectra of so many channels.
    template <bool CHANNELS_LAST, typename Use>
    __device__ __forceinline__ void for_values(const turbofno_tile &t, int channels, const TilePosition &at, const Use &use) const {
        const SpectraLayout<CHANNELS_LAST> layout{t.window.outer, here(t.modes), channels};
        const auto *all = reinterpret_cast<const float2 *>(t.mixed) + layout.row(at.b, at.o);
        const float2 *const first = all + channel * layout.channel_step() + mode * layout.mode_step();
        const float2 *const second = first + 2 * layout.channel_step();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool exists = mode + modes_on(i) < t.modes && channel + channels_on(i) < channels;
            use(i, exists ? (channels_on(i) ? second : first) + modes_on(i) * layout.mode_step() : all, exists);
        }
    }

    // Starts to copy what the lanes of this warp will read, each lane pairs of neighbouring channels: 4q and 4q + 1, or 4q + 2 and
    // 4q + 3 (q = lane / 8).
    __device__ __forceinline__ void copy_pairs(float2 *to, const turbofno_tile &t, int channels, const TilePosition &at, int lane,
                                               uint64_t policy) const {
        const SpectraLayout<true> layout{t.window.outer, here(t.modes), channels};
        const int second = lane / 4 % 2, c = channel + second;
        const auto *all = reinterpret_cast<const float2 *>(t.mixed) + layout.row(at.b, at.o);
        const float2 *from = all + mode * channels + c;
        float2 *to_slot = to + slot(2 * second, t.modes, lane) - second;
#pragma unroll
        for (int m = 0; m < 4; ++m, from += 4 * channels, to_slot += 2 * kLanes) {
            const bool exists = mode + 4 * m < t.modes && c < channels;
            if (16 * chunk + 4 * m < t.modes) copy_async<16>(to_slot, exists ? from : all, exists, policy);
        }
    }

    // Index of the value among the copied ones (copied_words in tile_plan.h); beyond its end for modes that no lane has. Of four
    // channels 4q .. 4q + 3 (q = lane / 8) the first two lie side by side, and the last two.
    __device__ __forceinline__ int slot(int i, int modes, int lane) const {
        const int quads = ceil_div(modes, 4), quad = 4 * chunk + modes_on(i) / 4;
        return ((pair * quads + quad) * 2 + channels_on(i) / 2) * kLanes + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
    }
    __device__ __forceinline__ bool is_copied(int i, int modes) const { return 16 * chunk + modes_on(i) < modes; }
};

// Starts to copy a row's mixed spectra to shared memory, where `stage_spectra` finds them. The lanes of a warp copy what they
// will read. `policy` is of L2.
template <Layouts LAYOUTS>
__device__ __forceinline__ void copy_spectra(float2 *to, const turbofno_tile &t, int channels, const TilePosition &at, int pairs,
                                             int first_channel, uint64_t policy, const WarpGroupContext &group) {
    const int blocks = ceil_div(2 * t.modes, 32) * pairs;
    with_layout<LAYOUTS>(t.channels_last, [&](auto channels_last) {
        for (int index = group.rank; index < blocks; index += group.size) {
            const SpectraBlock block(index, pairs, first_channel, group.lane);
            if constexpr (decltype(channels_last)::value) {
                block.copy_pairs(to, t, channels, at, group.lane, policy);
            } else {
                block.for_values<false>(t, channels, at, [&](int i, const float2 *from, bool exists) {
                    if (block.is_copied(i, t.modes)) copy_async<8>(to + block.slot(i, t.modes, group.lane), from, exists, policy);
                });
            }
        }
    });
    commit_copies();
}

// Reads what a lane has of a block, from memory or, unless that is null, from the copy: of whole ROWS as they lie in memory,
// channels last, or as `copy_spectra` left it.
template <Layouts LAYOUTS, bool ROWS>
__device__ __forceinline__ void read_spectra(float2 (&z)[8], const SpectraBlock &block, const float2 *copied,
                                             const turbofno_tile &t, int channels, const TilePosition &at, int lane) {
    if (copied == nullptr) {
        with_layout<LAYOUTS>(t.channels_last, [&](auto channels_last) {
            block.for_values<decltype(channels_last)::value>(
                t, channels, at, [&](int i, const float2 *from, bool exists) { if (exists) z[i] = *from; });
        });
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if constexpr (ROWS) {
            const int mode = block.mode + block.modes_on(i), channel = block.channel + block.channels_on(i);
            if (mode < t.modes && (channels % 16 == 0 || channel < channels)) z[i] = copied[mode * channels + channel];
        } else if (block.is_copied(i, t.modes)) {
            z[i] = copied[block.slot(i, t.modes, lane)];
        }
    }
}

// Stages a row's mixed spectra as a B operand: times the phases of a segment and a factor for each channel, unless null.
// `copied` is null without a copy.
template <typename P, Layouts LAYOUTS, bool ROWS, typename B>
__device__ void stage_spectra(uint4 *to, const float2 *copied, const turbofno_tile &t, int channels, const TilePosition &at,
                              const float2 *phases, const float *factors, int pairs, int first_channel,
                              const WarpGroupContext &group) {
    const int blocks = ceil_div(2 * t.modes, 32) * pairs;
    float *inv_scales = inv_scales_of<P>(to, 2 * t.modes, pairs);
    for (int index = group.rank; index < blocks; index += group.size) {
        const SpectraBlock block(index, pairs, first_channel, group.lane);
        float2 z[8] = {};
        read_spectra<LAYOUTS, ROWS>(z, block, copied, t, channels, at, group.lane);
        if (phases != nullptr) {
#pragma unroll
            for (int i = 0; i < 8; ++i) z[i] = product(z[i], __ldg(phases + min(block.mode + block.modes_on(i), t.modes - 1)));
        }
        if (factors != nullptr) {
            const float of[2] = {factors[block.channel], factors[block.channel + 2]};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float factor = of[block.channels_on(i) / 2];
                z[i] = {factor * z[i].x, factor * z[i].y};
            }
        }
        Scale scale{1.0f, 1.0f};
        if constexpr (P::kScaled) {
            float most = 0.0f;
#pragma unroll
            for (float2 value : z) most = max_magnitude(max_magnitude(most, value.x), value.y);
            scale = scale_of(max_of_lanes(most));
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 value = z[4 * step + i];
                split<P>(value.x, value.y, scale.factor, high[i], low[i]);
            }
            WordIndex word{block.chunk, step, block.pair, 0, group.lane};
            B::put(to, pairs, word, {high[0], high[1], high[2], high[3]});
            word.plane = 1;
            if constexpr (P::kSplit) B::put(to, pairs, word, {low[0], low[1], low[2], low[3]});
        }
        if (group.lane == 0) inv_scales[index] = scale.inverse;
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

    // Divides what a lane has of the sums of 8 columns (4 modes) by their phases, which exist.
    __device__ __forceinline__ void divide(float (&sum)[4], int columns, int lane) const {
        const int mode = 4 * columns + lane % 4;
        const float2 back = conjugate(__ldg(phases + min(mode, modes - 1)));
        const float2 first = product({sum[0], sum[1]}, back), second = product({sum[2], sum[3]}, back);
        sum[0] = first.x, sum[1] = first.y, sum[2] = second.x, sum[3] = second.y;
    }
};

// Truncated DFT for the next spectral product: sums += y^T . table over the points of a tile of a segment. M is channels, N
// cosines and sines; `columns` counts fragments of 8 (4 modes). `y` is split (split_points), `inv_scale` of y and table.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void analyze(float4 *sums, const uint4 (&y)[FRAGMENTS / 2][2], const uint4 *table, int tile,
                                        int columns, float inv_scale, const SegmentPhases &phases, int lane) {
    const int pairs = ceil_div(columns, 2);
    constexpr int kUnroll = FRAGMENTS < 4 ? 1 : 2; // blocks of 16 channels
#pragma unroll
    for (int m0 = 0; m0 < FRAGMENTS / 2; m0 += kUnroll) {
        uint32_t high[kUnroll][4], low[kUnroll][4];
#pragma unroll
        for (int m = 0; m < kUnroll; ++m) {
#pragma unroll
            for (int r = 0; r < 4; ++r) { // rows of fragment r % 2, points of half r / 2
                const uint4 word = y[m0 + m][r / 2];
                high[m][r] = transpose_8x8(r % 2 ? word.y : word.x);
                if constexpr (P::kSplit) low[m][r] = transpose_8x8(r % 2 ? word.w : word.z);
            }
        }
        const uint4 *at = table + tile * pairs * (P::kPlanes * kLanes) + lane;
        float4 *to = sums + m0 * columns * kLanes + lane;
        // all products of two fragments are independent chains; the second of the last pair may not exist
        const auto add_pairs = [&](auto segmented) {
#pragma unroll 1
            for (int n = 0; n < columns; n += 2, at += P::kPlanes * kLanes, to += 2 * kLanes) {
                const uint4 h = at[0], l = P::kSplit ? at[kLanes] : uint4{};
                const bool both = n + 1 < columns;
                float4 before[kUnroll][2];
#pragma unroll
                for (int m = 0; m < kUnroll; ++m) {
                    before[m][0] = to[m * columns * kLanes];
                    if (both) before[m][1] = to[(m * columns + 1) * kLanes];
                }
                float part[kUnroll][2][4] = {};
#pragma unroll
                for (int product = P::kSplit ? 0 : 2; product < 3; ++product) { // small products first
                    const uint4 b = product == 1 ? l : h;
#pragma unroll
                    for (int m = 0; m < kUnroll; ++m) {
                        mma<P>(part[m][0], product == 0 ? low[m] : high[m], b.x, b.y);
                        mma<P>(part[m][1], product == 0 ? low[m] : high[m], b.z, b.w);
                    }
                }
#pragma unroll
                for (int m = 0; m < kUnroll; ++m) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float(&p)[4] = part[m][i];
                        if constexpr (decltype(segmented)::value) phases.divide(p, n + i, lane);
                        const float4 b = before[m][i];
                        const float4 sum{fmaf(p[0], inv_scale, b.x), fmaf(p[1], inv_scale, b.y), fmaf(p[2], inv_scale, b.z),
                                         fmaf(p[3], inv_scale, b.w)};
                        if (i == 0 || both) to[(m * columns + i) * kLanes] = sum;
                    }
                }
            }
        };
        if (phases.phases == nullptr) {
            add_pairs(std::false_type{});
        } else {
            add_pairs(std::true_type{});
        }
    }
}

// Adds the sums of a group's warps and writes them as the row's spectra. `columns` as in `analyze`.
template <int FRAGMENTS, bool CHANNELS_LAST>
__device__ __forceinline__ void write_spectra(const SpectraLayout<CHANNELS_LAST> &layout, float2 *row, const float4 *sums,
                                              int sums_words, int columns, int first_channel, const WarpGroupContext &group) {
    const int lane = here(group.lane), mode0 = lane % 4, channel0 = first_channel + channel_of(0, lane / 4);
    const ChannelsWriter<CHANNELS_LAST> write(layout, row, mode0, layout.modes, channel0, lane);
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
        write(4 * n, 16 * m, {sum.x, sum.y}, {sum.z, sum.w});
    }
}

// The same analysis with wgmma. The 64 points of a warpgroup go to shared memory once, split, and wgmma reads them transposed,
// channels as rows. The row's sums stay in registers: in each block of 64 rows, lane (g, t) has the modes 4n + t of two of the 16
// rows from 16 rank on, those of column g of both fragments (channel_of). Of 32 channels, split, the low parts are the rows behind
// the high ones.
template <typename P, int FRAGMENTS, int COLUMNS> struct WgmmaSums {
    static constexpr bool kStacked = FRAGMENTS < 8; // low parts as rows
    static constexpr int kBlocks = kStacked ? 1 : FRAGMENTS / 8;
    static constexpr int kPitch = (kStacked ? 2 : 1) * FRAGMENTS * kMatrixBytes; // of 8 staged points
    static constexpr int kPlane = (kStacked ? 1 : 8) * FRAGMENTS * kMatrixBytes; // of staged values: high or low parts
    float sums[kBlocks][COLUMNS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto &block : sums) {
#pragma unroll
            for (auto &fragment : block) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
        }
    }

    // The scale of the warpgroup's 64 points. `staging` begins with the largest magnitude of each of its warps.
    static __device__ __forceinline__ Scale scale(const float (&values)[FRAGMENTS][4], uint4 *staging,
                                                  const WarpGroupContext &group) {
        auto *maxima = reinterpret_cast<float *>(staging);
        if constexpr (P::kScaled) {
            const float most = max_of_warp(values);
            if (group.lane == 0) maxima[group.rank] = most;
        }
        group.sync(); // all warps have finished the wgmma that read the staged values, which `stage` overwrites
        if constexpr (!P::kScaled) return {1.0f, 1.0f};
        const float4 m = *reinterpret_cast<const float4 *>(maxima);
        return scale_of(max_magnitude(max_magnitude(max_magnitude(m.x, m.y), m.z), m.w));
    }

    // Stages the values of 16 channels, split with the warpgroup's scale (split_points): 8 x 8 matrices of the points g or g + 8
    // and the channels of one fragment.
    static __device__ __forceinline__ void stage(const uint4 (&words)[2], int s, uint4 *staging, const WarpGroupContext &group) {
        const int row = group.lane % 8, matrix = group.lane / 8; // whose address this lane gives
        const auto address = [&](int second, int fragment, int plane) {
            const int index = 2 * s + fragment;
            return shared_address(staging + 1) + plane * kPlane + (2 * group.rank + second) * kPitch + index * kMatrixBytes + 16 * row;
        };
        if constexpr (P::kSplit) {
            store_matrices(address(0, matrix % 2, matrix / 2), words[0]);
            store_matrices(address(1, matrix % 2, matrix / 2), words[1]);
        } else {
            store_matrices(address(matrix / 2, matrix % 2, 0), {words[0].x, words[0].y, words[1].x, words[1].y});
        }
    }

    // Adds the analysis of the staged values; `table` holds the segment's B operands, `inv_scale` is of both.
    __device__ __forceinline__ void add(const uint4 *staging, const uint4 *table, int first_tile, float inv_scale,
                                        const SegmentPhases &phases, const WarpGroupContext &group) {
        static_assert(P::kSplit || !kStacked);
        constexpr int kTile = P::kPlanes * 2 * COLUMNS * kMatrixBytes;
        const unsigned matrices = shared_address(staging + 1);
        fence_proxy_async();
        group.sync();
        const unsigned a = descriptor_low(matrices, kPitch);
        const unsigned b = descriptor_low(shared_address(table) + first_tile * kTile, COLUMNS * kMatrixBytes);
        constexpr unsigned kLowA = kPlane / 16, kLowB = 2 * COLUMNS * kMatrixWords;
        constexpr unsigned kNextA = 2 * kPitch / 16, kNextB = kTile / 16;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const unsigned rows = a + block * (8 * kMatrixWords);
#pragma unroll
            for (int first = 0; first < COLUMNS; first += kWgmmaColumns) { // all at once would take registers
                const unsigned these = b + first * kMatrixWords;
                float part[kWgmmaColumns][4];
                wgmma_fence();
                if constexpr (P::kSplit && !kStacked) {
#pragma unroll
                    for (int i = 0; i < kWarpgroupWarps; ++i) wgmma<P>(part, rows + kLowA + i * kNextA, these + i * kNextB, i > 0);
                }
                if constexpr (P::kSplit) {
#pragma unroll
                    for (int i = 0; i < kWarpgroupWarps; ++i) {
                        wgmma<P>(part, rows + i * kNextA, these + kLowB + i * kNextB, !kStacked || i > 0);
                    }
                }
#pragma unroll
                for (int i = 0; i < kWarpgroupWarps; ++i) wgmma<P>(part, rows + i * kNextA, these + i * kNextB, P::kSplit || i > 0);
                wgmma_commit_and_wait(part);
                if (FRAGMENTS <= kSegmentedFragments && phases.phases != nullptr) { // one branch, or the compiler divides always
#pragma unroll
                    for (int n = 0; n < kWgmmaColumns; ++n) phases.divide(part[n], first + n, group.lane);
                }
#pragma unroll
                for (int n = 0; n < kWgmmaColumns; ++n) {
                    float(&sum)[4] = sums[block][first + n];
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[e] = fmaf(part[n][e], inv_scale, sum[e]);
                }
            }
        }
    }

    // Writes the sums of a row. `staging` is that of its values.
    template <bool CHANNELS_LAST>
    __device__ __forceinline__ void write(const SpectraLayout<CHANNELS_LAST> &layout, float2 *row, int first_channel, uint4 *staging,
                                          const WarpGroupContext &group) {
        if constexpr (kStacked) add_low_rows(staging, group);
        const int rank = kStacked ? group.rank % 2 : group.rank;
        const int mode0 = group.lane % 4, channel0 = first_channel + 16 * rank + channel_of(0, group.lane / 4);
        const ChannelsWriter<CHANNELS_LAST> write(layout, row, mode0, layout.modes, channel0, group.lane);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                if (kStacked && n / kGiven != group.rank / 2) continue;
                const float(&v)[4] = sums[block][n];
                write(4 * n, 64 * block, {v[0], v[1]}, {v[2], v[3]});
            }
        }
    }

private:
    static constexpr int kGiven = COLUMNS / 2; // columns that a warp gives to the one which has the other rows of its channels

    // The warps of the high rows get the sums of the first columns, those of the low rows the others.
    __device__ __forceinline__ void add_low_rows(uint4 *staging, const WarpGroupContext &group) {
        auto *const exchanged = reinterpret_cast<float4 *>(staging + 1);
        const bool low = group.rank / 2;
        group.sync(); // the staged values have been read
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            const float(&v)[4] = sums[0][n];
            if ((n / kGiven == 0) == low) exchanged[(kGiven * group.rank + n % kGiven) * kLanes + group.lane] = {v[0], v[1], v[2], v[3]};
        }
        group.sync();
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            if ((n / kGiven == 0) == low) continue;
            const float4 more = exchanged[(kGiven * (group.rank ^ 2) + n % kGiven) * kLanes + group.lane];
            float(&v)[4] = sums[0][n];
            v[0] += more.x, v[1] += more.y, v[2] += more.z, v[3] += more.w;
        }
    }
};

// Copies an analysis table to shared memory in the layout that WgmmaSums reads. Tiles and columns that it lacks become zeros.
template <typename P, int COLUMNS>
__device__ void copy_analysis(uint4 *to, const void *table, int tiles, int columns) {
    constexpr int kPairs = COLUMNS / 2, kOfPair = P::kPlanes * kLanes;
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
