// The tile program: everything between two spectral products, in one read and one write of the field.
//
// A warp takes 16 neighbouring points of a row, all channels of them, through all steps, and asks no other warp for
// anything (products.cuh says where values lie). The warps of a team share a row: its mixed spectra, split once into
// shared memory, and the sums of the next layer's analysis, each warp its own until the row's end. The weights and, where
// there is room, the tables of a row lie in shared memory for the whole block, which stays for as many rows as there are
// (a persistent grid). So the warps of a multiprocessor drift apart, and while one loads, another multiplies and a third
// computes its activations.
#pragma once

#include "activations.cuh"
#include "dependent_launch.cuh"
#include "tile.h"
#include "tile_fields.cuh"

namespace turbofno {
namespace {

__device__ __forceinline__ int channel_of(int fragment, int column) { // of 16 channels, from the first
    return 4 * (column / 2) + column % 2 + 2 * (fragment % 2);
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

// A B operand with the pairs of fragments of this block's channels to shared memory.
__device__ void copy_operand(uint4 *to, const void *operand, int terms, int pairs_held, int first_pair, int pairs_all,
                             int pair_words) {
    const auto *from = static_cast<const uint4 *>(operand);
    const int chunks = ceil_div(terms, 32), words = pairs_held * pair_words;
    for (int i = threadIdx.x; i < chunks * words; i += blockDim.x) {
        const int chunk = i / words, rest = i - chunk * words;
        const bool exists = first_pair + rest / pair_words < pairs_all;
        to[i] = exists ? from[(chunk * pairs_all + first_pair) * pair_words + rest] : uint4{};
    }
    const auto *backs = reinterpret_cast<const float *>(from + chunks * pairs_all * pair_words);
    auto *to_backs = reinterpret_cast<float *>(to + chunks * words);
    for (int i = threadIdx.x; i < chunks * pairs_held; i += blockDim.x) {
        const int chunk = i / pairs_held, pair = first_pair + i - chunk * pairs_held;
        to_backs[i] = pair < pairs_all ? backs[chunk * pairs_all + pair] : 0.0f;
    }
}

__device__ void copy_words(uint4 *to, const void *from, int words) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = static_cast<const uint4 *>(from)[i];
}

// B operands in shared memory.
struct Held {
    const uint4 *words; // this lane's first
    const float *back;
    int pairs; // of fragments, from 32 terms to the next

    __device__ __forceinline__ Held(const uint4 *shared, int terms, int pairs, int pair_words, int lane)
        : words(shared + lane), back(reinterpret_cast<const float *>(shared + ceil_div(terms, 32) * pairs * pair_words)),
          pairs(pairs) {}
};

// A row's mixed spectra as a B operand: terms (re, im, re, im, ..) of its modes, columns the channels.
template <typename P>
__device__ void stage_spectra(uint4 *to, const turbofno_tile &t, int64_t row, int pairs, int first_channel,
                              const Team &team) {
    const int b = int(row / t.outer), o = int(row - b * t.outer), g = team.lane / 4, lane_mode = team.lane % 4;
    const int chunks = ceil_div(2 * t.modes, 32), blocks = chunks * pairs;
    auto *backs = reinterpret_cast<float *>(to + blocks * kPairWords<P>);
    const int64_t stride = t.outer * t.modes; // from one channel to the next
    const auto *from = reinterpret_cast<const float2 *>(t.mixed) + (int64_t(b) * t.channels * t.outer + o) * t.modes;
    for (int block = team.member; block < blocks; block += team.size) {
        const int chunk = block / pairs, pair = block - chunk * pairs;
        float2 z[2][2][2]; // step, fragment, first or second register
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int step = i / 4, fragment = i / 2 % 2, r = i % 2;
            const int mode = 16 * chunk + 8 * step + 4 * r + lane_mode;
            const int channel = first_channel + 16 * pair + channel_of(fragment, g);
            float2 value{0.0f, 0.0f};
            if (mode < t.modes && channel < t.channels) value = from[channel * stride + mode];
            z[step][fragment][r] = value;
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
            uint4 *word = to + block * kPairWords<P> + step * (P::kPlanes * kLanes) + team.lane;
            word[0] = {high[0], high[1], high[2], high[3]};
            if constexpr (P::kSplit) word[kLanes] = {low[0], low[1], low[2], low[3]};
        }
        if (team.lane == 0) backs[block] = scale.back;
    }
}

// The tables' words of one tile: in shared memory or through L1.
template <typename P> struct Table {
    const uint4 *shared, *global;

    __device__ __forceinline__ uint4 word(int at) const { return shared != nullptr ? shared[at] : __ldg(global + at); }
};

template <typename P, int FRAGMENTS>
__device__ __forceinline__ void synthesize(float (&values)[FRAGMENTS][4], const Table<P> &table, int tile, int chunks,
                                           const Held &spectra, float table_back, int lane) {
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
        add_product<P>(values, a, spectra.words + chunk * (FRAGMENTS / 2) * kPairWords<P>,
                       spectra.back + chunk * (FRAGMENTS / 2));
    }
}

// Four fragments from `first` on; zeros behind the last.
template <int FRAGMENTS>
__device__ __forceinline__ void take_four(float (&four)[4][4], const float (&values)[FRAGMENTS][4], int first) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) four[j][e] = first + j < FRAGMENTS ? values[first + j < FRAGMENTS ? first + j : 0][e] : 0.0f;
    }
}

// The next analysis: sums += y^T . table over the tile's points. Rows of the product are channels, columns cos and sin.
template <typename P, int FRAGMENTS>
__device__ __forceinline__ void analyze(float4 *sums, const float (&values)[FRAGMENTS][4], const Table<P> &table, int tile,
                                        int pairs, float table_back, bool first, int lane) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) {
        float most = 0.0f;
#pragma unroll
        for (auto &fragment : values) {
#pragma unroll
            for (float v : fragment) most = largest(most, v);
        }
        scale = scale_of(largest_of_lanes<1, 32>(most));
    }
    const float back = scale.back * table_back;
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
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
            const int at = (tile * pairs + pair) * (P::kPlanes * kLanes) + lane;
            const uint4 h = table.word(at);
            uint4 l{};
            if constexpr (P::kSplit) l = table.word(at + kLanes);
            float part[kTogether][2][4] = {};
            if constexpr (P::kSplit) {
#pragma unroll
                for (int i = 0; i < 2 * kTogether; ++i) {
                    multiply_add<P>(part[i / 2][i % 2], low[i / 2], i % 2 ? h.z : h.x, i % 2 ? h.w : h.y);
                }
#pragma unroll
                for (int i = 0; i < 2 * kTogether; ++i) {
                    multiply_add<P>(part[i / 2][i % 2], high[i / 2], i % 2 ? l.z : l.x, i % 2 ? l.w : l.y);
                }
            }
#pragma unroll
            for (int i = 0; i < 2 * kTogether; ++i) {
                multiply_add<P>(part[i / 2][i % 2], high[i / 2], i % 2 ? h.z : h.x, i % 2 ? h.w : h.y);
            }
#pragma unroll
            for (int i = 0; i < 2 * kTogether; ++i) {
                float4 *sum = sums + ((m0 + i / 2) * 2 * pairs + 2 * pair + i % 2) * kLanes + lane;
                const float4 before = first ? float4{} : *sum;
                const float(&p)[4] = part[i / 2][i % 2];
                *sum = {fmaf(p[0], back, before.x), fmaf(p[1], back, before.y), fmaf(p[2], back, before.z),
                        fmaf(p[3], back, before.w)};
            }
        }
    }
}

// The sums of a team's warps as the row's spectra.
template <int FRAGMENTS>
__device__ void write_spectra(float *spectra, const float4 *sums, int sums_words, const turbofno_tile &t, int64_t row,
                              int pairs, int first_channel, const Team &team) {
    const int b = int(row / t.outer), o = int(row - b * t.outer), g = team.lane / 4;
    auto *to = reinterpret_cast<float2 *>(spectra) + (int64_t(b) * t.channels * t.outer + o) * t.next_modes;
    const int64_t stride = t.outer * t.next_modes;
    for (int item = team.member; item < FRAGMENTS / 2 * 2 * pairs; item += team.size) {
        float4 sum = sums[item * kLanes + team.lane];
        for (int other = 1; other < team.size; ++other) {
            const float4 more = sums[other * sums_words + item * kLanes + team.lane];
            sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        const int m = item / (2 * pairs), n = item - m * 2 * pairs;
        const int mode = 4 * n + team.lane % 4, channel = first_channel + 16 * m + channel_of(0, g);
        if (mode >= t.next_modes) continue;
        if (channel < t.channels) to[channel * stride + mode] = {sum.x, sum.y};
        if (channel + 2 < t.channels) to[(channel + 2) * stride + mode] = {sum.z, sum.w};
    }
}

// Four neighbouring entries of a vector over channels.
__device__ __forceinline__ float4 vector_at(const float *vector, int channel, float otherwise) {
    return vector != nullptr ? __ldg(reinterpret_cast<const float4 *>(vector + channel))
                             : float4{otherwise, otherwise, otherwise, otherwise};
}

template <int FRAGMENTS> __device__ __forceinline__ void add_vector(float (&values)[FRAGMENTS][4], const float *vector, int t) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        const float4 v = vector_at(vector, 16 * s + 4 * t, 0.0f);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[2 * s][e] += e % 2 ? v.y : v.x;
            values[2 * s + 1][e] += e % 2 ? v.w : v.z;
        }
    }
}

// out += second . activation(first . y + shift), 32 hidden channels at a time.
template <typename P, int FRAGMENTS, int OUT>
__device__ __forceinline__ void perceptron(float (&out)[OUT][4], const float (&values)[FRAGMENTS][4],
                                           const turbofno_step &step, const Held &first, const Held &second, int t) {
    constexpr int kChunks = FRAGMENTS < 4 ? 1 : FRAGMENTS / 4;
    Operand<P> in[kChunks];
#pragma unroll
    for (int q = 0; q < kChunks; ++q) {
        float four[4][4];
        take_four(four, values, 4 * q);
        to_operand(in[q], four);
    }
#pragma unroll
    for (auto &fragment : out) fragment[0] = fragment[1] = fragment[2] = fragment[3] = 0.0f;
    if (step.hidden == 0) {
#pragma unroll
        for (int q = 0; q < kChunks; ++q) {
            if (32 * q < step.terms) {
                add_product<P>(out, in[q], second.words + q * second.pairs * kPairWords<P>, second.back + q * second.pairs);
            }
        }
        return;
    }
#pragma unroll 1
    for (int chunk = 0; chunk < step.hidden / 32; ++chunk) {
        float hidden[4][4] = {};
#pragma unroll
        for (int q = 0; q < kChunks; ++q) {
            if (32 * q < step.terms) {
                const int pair = q * first.pairs + 2 * chunk;
                add_product<P>(hidden, in[q], first.words + pair * kPairWords<P>, first.back + pair);
            }
        }
        if (step.shift != nullptr) add_vector(hidden, step.shift + 32 * chunk, t);
        activate<P>(hidden, step.activation, step.parameter);
        Operand<P> a;
        to_operand(a, hidden);
        const int pair = chunk * second.pairs;
        add_product<P>(out, a, second.words + pair * kPairWords<P>, second.back + pair);
    }
}

template <typename P, int FRAGMENTS, bool WIDE>
__global__ void __launch_bounds__(32 * most_warps(FRAGMENTS, WIDE), 1) tile_program(const __grid_constant__ TileArguments a) {
    using Field = typename P::Field;
    extern __shared__ uint4 shared[];
    const turbofno_tile &t = a.tile;
    const TilePlan &plan = a.plan;
    const int warp = threadIdx.x / kLanes, first_channel = blockIdx.y * (8 * FRAGMENTS);
    Team team;
    team.size = plan.team;
    team.index = warp / plan.team;
    team.member = warp - team.index * plan.team;
    team.lane = threadIdx.x % kLanes;
    const int lane = team.lane, g = lane / 4, lane_t = lane % 4;
    const int pairs_all = ceil_div(t.width, 16), tiles = ceil_div(t.points, kTilePoints);
    const int chunks = ceil_div(2 * t.modes, 32), next_pairs = ceil_div(2 * t.next_modes, 16);

    // prologue: weights and tables, which the kernel before seldom makes
    if (!t.weights_settled) wait_for_previous();
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        if (step.kind == TURBOFNO_ADD_MAP) {
            copy_operand(shared + plan.first_at[i], step.first, step.terms, FRAGMENTS / 2, first_channel / 16, pairs_all,
                         kPairWords<P>);
        } else if (WIDE && (step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT)) {
            const int hidden = step.hidden / 16, out = step.kind == TURBOFNO_PROJECT ? 1 : FRAGMENTS / 2;
            const int out_all = step.kind == TURBOFNO_PROJECT ? 1 : pairs_all;
            if (hidden > 0) {
                copy_operand(shared + plan.first_at[i], step.first, step.terms, hidden, 0, hidden, kPairWords<P>);
            }
            copy_operand(shared + plan.second_at[i], step.second, hidden > 0 ? step.hidden : step.terms, out, 0, out_all,
                         kPairWords<P>);
        }
    }
    if (plan.tables_on_chip) {
        copy_words(shared + plan.synthesis_at, t.synthesis, tiles * chunks * 2 * P::kPlanes * kLanes);
        copy_words(shared + plan.analysis_at, t.analysis, tiles * next_pairs * P::kPlanes * kLanes);
    }
    const Table<P> synthesis{plan.tables_on_chip ? shared + plan.synthesis_at : nullptr,
                             static_cast<const uint4 *>(t.synthesis)};
    const Table<P> analysis{plan.tables_on_chip ? shared + plan.analysis_at : nullptr,
                            static_cast<const uint4 *>(t.analysis)};
    uint4 *const own = shared + plan.first_team + team.index * plan.team_words;
    float4 *const sums = reinterpret_cast<float4 *>(own + plan.sums_at);
    float4 *const own_sums = sums + team.member * plan.sums_words;
    __syncthreads();
    wait_for_previous();

    const Held spectra(own, 2 * t.modes, FRAGMENTS / 2, kPairWords<P>, lane);
    const int teams = plan.warps / plan.team;
    const int64_t rows = t.batch * t.outer, units = rows * plan.splits;
    for (int64_t unit = int64_t(blockIdx.x) * teams + team.index; unit < units; unit += int64_t(gridDim.x) * teams) {
        Place at;
        at.row = unit / plan.splits;
        const int split = int(unit - at.row * plan.splits);
        at.b = int(at.row / t.outer);
        at.o = int(at.row - at.b * t.outer);
        if (chunks > 0) {
            stage_spectra<P>(own, t, at.row, FRAGMENTS / 2, first_channel, team);
            team.wait();
        }
        bool first = true;
        const int end = min(tiles, (split + 1) * plan.split_tiles);
        for (int tile = split * plan.split_tiles + team.member; tile < end; tile += team.size) {
            at.point = tile * kTilePoints + g;
            at.inside[0] = at.point < t.points;
            at.inside[1] = at.point + 8 < t.points;
            float values[FRAGMENTS][4] = {};
#pragma unroll 1
            for (int i = 0; i < t.steps; ++i) {
                const turbofno_step &step = t.step[i];
                const FieldShape shape{t.outer, t.points, step.channels, step.channel_first != 0, first_channel};
                switch (step.kind) {
                case TURBOFNO_LOAD: {
#pragma unroll
                    for (int s = 0; s < FRAGMENTS / 2; ++s) {
                        float4 points[2];
                        load_channels<Field>(points, step.field, shape, at, 16 * s + 4 * lane_t);
                        to_fragments(values[2 * s], values[2 * s + 1], points);
                    }
                    break;
                }
                case TURBOFNO_SYNTHESIS:
                    synthesize<P>(values, synthesis, tile, chunks, spectra, a.synthesis_back, lane);
                    break;
                case TURBOFNO_AFFINE: {
                    const int64_t vectors = (step.per_sample ? int64_t(at.b) * t.width : 0) + first_channel;
#pragma unroll
                    for (int s = 0; s < FRAGMENTS / 2; ++s) {
                        const int channel = 16 * s + 4 * lane_t;
                        if (first_channel + channel >= t.width) continue;
                        const float4 scale = vector_at(step.scale, int(vectors) + channel, 1.0f);
                        const float4 shift = vector_at(step.shift, int(vectors) + channel, 0.0f);
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            values[2 * s][e] = fmaf(values[2 * s][e], e % 2 ? scale.y : scale.x, e % 2 ? shift.y : shift.x);
                            values[2 * s + 1][e] =
                                fmaf(values[2 * s + 1][e], e % 2 ? scale.w : scale.z, e % 2 ? shift.w : shift.z);
                        }
                    }
                    break;
                }
                case TURBOFNO_ADD_MAP: {
                    const Held map(shared + plan.first_at[i], step.terms, FRAGMENTS / 2, kPairWords<P>, lane);
                    const FieldShape all{t.outer, t.points, step.channels, step.channel_first != 0, 0};
                    float4 points[2][2];
#pragma unroll
                    for (int s = 0; s < 2; ++s) load_channels<Field>(points[s], step.field, all, at, 16 * s + 4 * lane_t);
#pragma unroll 1
                    for (int q = 0; q < ceil_div(step.terms, 32); ++q) {
                        float four[4][4];
                        to_fragments(four[0], four[1], points[0]);
                        to_fragments(four[2], four[3], points[1]);
                        Operand<P> x;
                        to_operand(x, four);
#pragma unroll
                        for (int s = 0; s < 2; ++s) {
                            load_channels<Field>(points[s], step.field, all, at, 32 * (q + 1) + 16 * s + 4 * lane_t);
                        }
                        const int pair = q * (FRAGMENTS / 2);
                        add_product<P>(values, x, map.words + pair * kPairWords<P>, map.back + pair);
                    }
                    break;
                }
                case TURBOFNO_ADD_GATE: {
#pragma unroll
                    for (int s = 0; s < FRAGMENTS / 2; ++s) {
                        const int channel = 16 * s + 4 * lane_t;
                        if (first_channel + channel >= t.width) continue;
                        float4 points[2], weights[2];
                        load_channels<Field>(points, step.field, shape, at, channel);
                        weights[0] = vector_at(step.scale, first_channel + channel, 1.0f);
#pragma unroll
                        for (int second = 0; second < 2; ++second) {
                            const float4 w = weights[0], x = points[second];
                            float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
                            even[0] = fmaf(w.x, x.x, even[0]), even[1] = fmaf(w.y, x.y, even[1]);
                            odd[0] = fmaf(w.z, x.z, odd[0]), odd[1] = fmaf(w.w, x.w, odd[1]);
                        }
                    }
                    break;
                }
                case TURBOFNO_ACTIVATE:
                    activate<P>(values, step.activation, step.parameter);
                    break;
                case TURBOFNO_MLP:
                    if constexpr (WIDE) {
                        const Held in(shared + plan.first_at[i], step.terms, step.hidden / 16, kPairWords<P>, lane);
                        const Held out(shared + plan.second_at[i], step.hidden, FRAGMENTS / 2, kPairWords<P>, lane);
                        float result[FRAGMENTS][4];
                        perceptron<P>(result, values, step, in, out, lane_t);
#pragma unroll
                        for (int j = 0; j < FRAGMENTS; ++j) {
#pragma unroll
                            for (int e = 0; e < 4; ++e) values[j][e] = result[j][e];
                        }
                        if (step.second_shift != nullptr) add_vector(values, step.second_shift, lane_t);
                    }
                    break;
                case TURBOFNO_STORE: {
#pragma unroll
                    for (int s = 0; s < FRAGMENTS / 2; ++s) {
                        float4 points[2];
                        to_points(points, values[2 * s], values[2 * s + 1]);
                        store_channels<Field>(const_cast<void *>(step.field), shape, at, 16 * s + 4 * lane_t, points);
                    }
                    break;
                }
                case TURBOFNO_ANALYZE:
                    analyze<P>(own_sums, values, analysis, tile, next_pairs, a.analysis_back, first, lane);
                    break;
                case TURBOFNO_PROJECT:
                    if constexpr (WIDE) {
                        const Held in(shared + plan.first_at[i], step.terms, step.hidden / 16, kPairWords<P>, lane);
                        const Held out(shared + plan.second_at[i], step.hidden > 0 ? step.hidden : step.terms, 1,
                                       kPairWords<P>, lane);
                        float result[2][4];
                        perceptron<P>(result, values, step, in, out, lane_t);
                        if (step.second_shift != nullptr) add_vector(result, step.second_shift, lane_t);
                        float4 points[2];
                        to_points(points, result[0], result[1]);
                        store_channels<Field>(const_cast<void *>(step.field), shape, at, 4 * lane_t, points);
                    }
                    break;
                }
            }
            first = false;
        }
        if (next_pairs > 0) {
            if (first) { // a warp without a tile in this row
                for (int i = lane; i < plan.sums_words; i += kLanes) own_sums[i] = float4{};
            }
            team.wait();
            float *to = a.next + (plan.splits > 1 ? int64_t(split) * rows * t.channels * 2 * t.next_modes : 0);
            write_spectra<FRAGMENTS>(to, sums, plan.sums_words, t, at.row, next_pairs, first_channel, team);
        }
        team.wait(); // spectra and sums have been read
    }
    let_next_start();
}

template <typename P, int FRAGMENTS> TileKernel kernel_of(bool wide) {
    return wide ? tile_program<P, FRAGMENTS, true> : tile_program<P, FRAGMENTS, false>;
}

template <typename P> TileKernel kernel_of(const TilePlan &plan) {
    switch (plan.fragments) {
    case 2: return kernel_of<P, 2>(plan.wide);
    case 4: return kernel_of<P, 4>(plan.wide);
    case 8: return kernel_of<P, 8>(plan.wide);
    default: return kernel_of<P, 16>(plan.wide);
    }
}

} // namespace
} // namespace turbofno
