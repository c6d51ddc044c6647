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

// A vector over channels from the first on; zeros behind its `size` entries, or channels that do not exist would have
// whatever values lie there.
__device__ void copy_vector(float *to, const float *from, int count, int first, int size) {
    if (from == nullptr) return;
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = first + i < size ? from[first + i] : 0.0f;
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
__device__ void stage_spectra(uint4 *to, const turbofno_tile &t, const Place &at, int pairs, int first_channel,
                              const Team &team) {
    const int g = team.lane / 4, lane_mode = team.lane % 4;
    const int chunks = ceil_div(2 * t.modes, 32), blocks = chunks * pairs;
    auto *backs = reinterpret_cast<float *>(to + blocks * kPairWords<P>);
    const int64_t stride = t.outer * t.modes; // from one channel to the next
    const auto *from = reinterpret_cast<const float2 *>(t.mixed) + (int64_t(at.b) * t.channels * t.outer + at.o) * t.modes;
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

// A table's words: in shared memory or through L1.
struct Table {
    const uint4 *shared, *global;
    bool on_chip;

    __device__ __forceinline__ uint4 word(int at) const { return on_chip ? shared[at] : __ldg(global + at); }
};

template <typename P, int FRAGMENTS>
__device__ __forceinline__ void synthesize(float (&values)[FRAGMENTS][4], const Table &table, int tile, int chunks,
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

// Points that do not exist have whatever values were there; an analysis takes them for zero.
template <int FRAGMENTS>
__device__ __forceinline__ void zero_behind(float (&values)[FRAGMENTS][4], int point, int points) {
#pragma unroll
    for (auto &fragment : values) {
        if (point >= points) fragment[0] = fragment[1] = 0.0f;
        if (point + 8 >= points) fragment[2] = fragment[3] = 0.0f;
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
__device__ __forceinline__ void analyze(float4 *sums, const float (&values)[FRAGMENTS][4], const Table &table, int tile,
                                        int columns, float table_back, bool first, int lane) {
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

// Vectors over channels, four neighbouring entries at a time.
template <int FRAGMENTS> __device__ __forceinline__ void add_vector(float (&values)[FRAGMENTS][4], const float *vector, int t,
                                                                          int size = 8 * FRAGMENTS) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        if (16 * s >= size) break;
        const float4 v = *reinterpret_cast<const float4 *>(vector + 16 * s + 4 * t);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[2 * s][e] += e % 2 ? v.y : v.x;
            values[2 * s + 1][e] += e % 2 ? v.w : v.z;
        }
    }
}

template <int FRAGMENTS> __device__ __forceinline__ void scale_by(float (&values)[FRAGMENTS][4], const float *vector, int t,
                                                                          int size = 8 * FRAGMENTS) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        if (16 * s >= size) break;
        const float4 v = *reinterpret_cast<const float4 *>(vector + 16 * s + 4 * t);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[2 * s][e] *= e % 2 ? v.y : v.x;
            values[2 * s + 1][e] *= e % 2 ? v.w : v.z;
        }
    }
}

// out += second . activation(first . y + shift), 32 hidden channels at a time.
template <typename P, int FRAGMENTS, int OUT>
__device__ __forceinline__ void perceptron(float (&out)[OUT][4], const float (&values)[FRAGMENTS][4],
                                           const turbofno_step &step, const Held &first, const Held &second, const float *shift, int t) {
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
                add_product<P>(hidden, in[q], first.words + pair * kPairWords<P>, first.back + pair,
                               step.terms - 32 * q <= 16 ? 1 : 2);
            }
        }
        if (shift != nullptr) add_vector(hidden, shift + 32 * chunk, t);
        activate<P>(hidden, step.activation, step.parameter);
        Operand<P> a;
        to_operand(a, hidden);
        const int pair = chunk * second.pairs;
        add_product<P>(out, a, second.words + pair * kPairWords<P>, second.back + pair);
    }
}

// values += weight . x, 32 of x's channels at a time.
template <typename P, int FRAGMENTS, typename From>
__device__ __forceinline__ void add_map(float (&values)[FRAGMENTS][4], const From &x, int terms, const Held &map) {
#pragma unroll 1
    for (int q = 0; 32 * q < terms; ++q) {
        float4 points[2][2];
        x.load(points[0], 2 * q);
        x.load(points[1], 2 * q + 1);
        float four[4][4];
        to_fragments(four[0], four[1], points[0]);
        to_fragments(four[2], four[3], points[1]);
        Operand<P> a;
        to_operand(a, four);
        const int pair = q * (FRAGMENTS / 2);
        add_product<P>(values, a, map.words + pair * kPairWords<P>, map.back + pair);
    }
}

template <int FRAGMENTS, typename From>
__device__ __forceinline__ void add_gate(float (&values)[FRAGMENTS][4], const From &x, const float *weight, int t) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        x.load(points, s);
        const float4 w = *reinterpret_cast<const float4 *>(weight + 16 * s + 4 * t);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            float *even = &values[2 * s][2 * second], *odd = &values[2 * s + 1][2 * second];
            even[0] = fmaf(w.x, points[second].x, even[0]), even[1] = fmaf(w.y, points[second].y, even[1]);
            odd[0] = fmaf(w.z, points[second].z, odd[0]), odd[1] = fmaf(w.w, points[second].w, odd[1]);
        }
    }
}

template <int FRAGMENTS, typename From>
__device__ __forceinline__ void load_all(float (&values)[FRAGMENTS][4], const From &from) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        from.load(points, s);
        to_fragments(values[2 * s], values[2 * s + 1], points);
    }
}

template <int FRAGMENTS, typename To>
__device__ __forceinline__ void store_all(const float (&values)[FRAGMENTS][4], const To &to) {
#pragma unroll
    for (int s = 0; s < FRAGMENTS / 2; ++s) {
        float4 points[2];
        to_points(points, values[2 * s], values[2 * s + 1]);
        to.store(s, points);
    }
}

// Calls run(i, kind) for the steps of a program that is known when this is compiled (tile.h).
template <uint64_t PROGRAM, int I = 0, typename Run> __device__ __forceinline__ void unrolled(const Run &run) {
    if constexpr ((PROGRAM >> (4 * I)) != 0) {
        run(I, int(PROGRAM >> (4 * I) & 15) - 1);
        unrolled<PROGRAM, I + 1>(run);
    }
}

template <typename P, int FRAGMENTS, bool WIDE, uint64_t PROGRAM>
__global__ void __launch_bounds__(32 * most_warps(FRAGMENTS, WIDE), 1) tile_program(const __grid_constant__ TileArguments a) {
    using Field = typename P::Field;
    extern __shared__ uint4 shared[];
    const turbofno_tile &t = a.tile;
    const TilePlan &plan = a.plan;
    // the same for all lanes, which the compiler cannot know
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0), first_channel = blockIdx.y * (8 * FRAGMENTS);
    Team team;
    team.size = plan.team;
    team.index = warp / plan.team;
    team.member = warp - team.index * plan.team;
    team.lane = threadIdx.x % kLanes;
    const int lane = team.lane, lane_t = lane % 4;
    const int pairs_all = ceil_div(t.width, 16), tiles = ceil_div(t.points, kTilePoints);
    const int chunks = ceil_div(2 * t.modes, 32), columns = ceil_div(2 * t.next_modes, 8);

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
    for (int i = 0; i < t.steps; ++i) {
        const turbofno_step &step = t.step[i];
        if (step.per_sample) continue;
        const bool hidden = step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT;
        const int width = plan.vector_width[i], first = hidden ? 0 : first_channel, size = hidden ? step.hidden : t.width;
        float *to = reinterpret_cast<float *>(shared + plan.vectors_at[i]);
        copy_vector(to, step.scale, width, first, size);
        copy_vector(to + width, step.shift, width, first, size);
        const bool projects = step.kind == TURBOFNO_PROJECT;
        copy_vector(to + 2 * width, step.second_shift, projects ? kMostProjected : 8 * FRAGMENTS, 0,
                    projects ? kMostProjected : t.width);
    }
    if (plan.tables_on_chip) {
        copy_words(shared + plan.synthesis_at, t.synthesis, tiles * chunks * 2 * P::kPlanes * kLanes);
        copy_words(shared + plan.analysis_at, t.analysis, tiles * ceil_div(columns, 2) * P::kPlanes * kLanes);
    }
    uint4 *const own = shared + plan.first_team + team.index * plan.team_words;
    float4 *const sums = reinterpret_cast<float4 *>(own + plan.sums_at);
    float4 *const own_sums = sums + team.member * plan.sums_words;
    __syncthreads();
    wait_for_previous();

    const Held spectra(own, 2 * t.modes, FRAGMENTS / 2, kPairWords<P>, lane);
    const int outer = int(t.outer), rows = int(t.batch) * outer, units = rows * plan.splits;
    const int teams = plan.warps / plan.team, stride = gridDim.x * teams;
    const auto place_of = [&](int unit) {
        Place at;
        at.row = unit / plan.splits;
        at.b = at.row / outer;
        at.o = at.row - at.b * outer;
        const int split = unit - at.row * plan.splits, tile = split * plan.split_tiles + team.member;
        // without a tile in this row: behind its end
        at.point = tile < min(tiles, (split + 1) * plan.split_tiles) ? tile * kTilePoints : t.points;
        return at;
    };
    const auto synthesis_table = [&] {
        return Table{shared + plan.synthesis_at, static_cast<const uint4 *>(t.synthesis), plan.tables_on_chip};
    };
    const auto analysis_table = [&] {
        return Table{shared + plan.analysis_at, static_cast<const uint4 *>(t.analysis), plan.tables_on_chip};
    };
    const turbofno_step &boxed = t.step[max(plan.inbox_step, 0)];
    uint4 *const box = own + plan.inbox_at + team.member * plan.inbox_words;
    Inbox inbox(box + 1, box, plan.inbox_step >= 0, lane);
    const auto send_for = [&](const Place &at) {
        if (plan.inbox_step < 0) return;
        const int bytes = pitch_of<Field>(boxed.channels) * int(sizeof(Field));
        const auto *from = static_cast<const char *>(boxed.field) + (int64_t(at.row) * t.points + at.point) * bytes;
        inbox.send_for(from, min(kTilePoints, t.points - at.point) * bytes, lane);
    };
    int unit = blockIdx.x * teams + team.index;
    Place at = place_of(unit);
    if (unit < units && at.point < t.points) send_for(at);
    while (unit < units) {
        const int split = plan.splits > 1 ? unit % plan.splits : 0;
        if (chunks > 0) {
            stage_spectra<P>(own, t, at, FRAGMENTS / 2, first_channel, team);
            team.wait();
        }
        const int following = unit + stride;
        const Place next_row = place_of(min(following, units - 1));
        bool first = true;
        const int end = min(tiles, (split + 1) * plan.split_tiles);
        for (int tile = split * plan.split_tiles + team.member; tile < end; tile += team.size) {
            Place after = at;
            after.point += team.size * kTilePoints;
            const bool last_of_row = tile + team.size >= end;
            if (last_of_row) after = next_row;
            const bool goes_on = !last_of_row || following < units;
            float values[FRAGMENTS][4] = {};
            const auto run = [&](int i, int kind) {
                const turbofno_step &step = t.step[i];
                const float *vectors = reinterpret_cast<const float *>(shared + plan.vectors_at[i]);
                const bool from_box = i >= plan.inbox_step && i <= plan.inbox_last;
                if (i == plan.inbox_step) inbox.wait();
                switch (kind) {
                case TURBOFNO_LOAD:
                    if (step.channel_first) {
                        load_all(values, ChannelFirstPoints(step.field, step.channels, first_channel, outer, t.points, at, lane));
                    } else if (from_box) {
                        load_all(values, InboxPoints<Field>(box + 1, step.channels, first_channel, lane));
                    } else {
                        load_all(values, Points<Field>(step.field, step.channels, first_channel, t.points, at, lane));
                    }
                    break;
                case TURBOFNO_SYNTHESIS:
                    synthesize<P>(values, synthesis_table(), tile, chunks, spectra, a.synthesis_back, lane);
                    break;
                case TURBOFNO_AFFINE:
                    if (step.per_sample) {
                        const int sample = at.b * t.width + first_channel, left = t.width - first_channel;
                        scale_by(values, step.scale + sample, lane_t, left);
                        add_vector(values, step.shift + sample, lane_t, left);
                    } else {
                        if (step.scale != nullptr) scale_by(values, vectors, lane_t);
                        if (step.shift != nullptr) add_vector(values, vectors + plan.vector_width[i], lane_t);
                    }
                    break;
                case TURBOFNO_ADD_MAP: {
                    const Held map(shared + plan.first_at[i], step.terms, FRAGMENTS / 2, kPairWords<P>, lane);
                    if (step.channel_first) {
                        const ChannelFirstPoints x(step.field, step.channels, 0, outer, t.points, at, lane);
                        add_map<P>(values, x, step.terms, map);
                    } else if (from_box) {
                        add_map<P>(values, InboxPoints<Field>(box + 1, step.channels, 0, lane), step.terms, map);
                    } else {
                        add_map<P>(values, Points<Field>(step.field, step.channels, 0, t.points, at, lane), step.terms, map);
                    }
                    break;
                }
                case TURBOFNO_ADD_GATE:
                    if (step.channel_first) {
                        const ChannelFirstPoints x(step.field, step.channels, first_channel, outer, t.points, at, lane);
                        add_gate(values, x, vectors, lane_t);
                    } else if (from_box) {
                        add_gate(values, InboxPoints<Field>(box + 1, step.channels, first_channel, lane), vectors, lane_t);
                    } else {
                        const Points<Field> x(step.field, step.channels, first_channel, t.points, at, lane);
                        add_gate(values, x, vectors, lane_t);
                    }
                    break;
                case TURBOFNO_ACTIVATE:
                    activate<P>(values, step.activation, step.parameter);
                    break;
                case TURBOFNO_MLP:
                    if constexpr (WIDE) {
                        const Held in(shared + plan.first_at[i], step.terms, step.hidden / 16, kPairWords<P>, lane);
                        const Held out(shared + plan.second_at[i], step.hidden, FRAGMENTS / 2, kPairWords<P>, lane);
                        const int hidden = plan.vector_width[i];
                        float result[FRAGMENTS][4];
                        perceptron<P>(result, values, step, in, out, step.shift != nullptr ? vectors + hidden : nullptr, lane_t);
#pragma unroll
                        for (int j = 0; j < FRAGMENTS; ++j) {
#pragma unroll
                            for (int e = 0; e < 4; ++e) values[j][e] = result[j][e];
                        }
                        if (step.second_shift != nullptr) add_vector(values, vectors + 2 * hidden, lane_t);
                    }
                    break;
                case TURBOFNO_STORE:
                    if (step.channel_first) {
                        store_all(values, ChannelFirstPoints(step.field, step.channels, first_channel, outer, t.points, at, lane));
                    } else {
                        store_all(values, Points<Field>(step.field, step.channels, first_channel, t.points, at, lane));
                    }
                    break;
                case TURBOFNO_ANALYZE:
                    if (at.point + kTilePoints > t.points) zero_behind(values, at.point + lane / 4, t.points);
                    analyze<P>(own_sums, values, analysis_table(), tile, columns, a.analysis_back, first, lane);
                    break;
                case TURBOFNO_PROJECT:
                    if constexpr (WIDE) {
                        const Held in(shared + plan.first_at[i], step.terms, step.hidden / 16, kPairWords<P>, lane);
                        const Held out(shared + plan.second_at[i], step.hidden > 0 ? step.hidden : step.terms, 1,
                                       kPairWords<P>, lane);
                        const int hidden = plan.vector_width[i];
                        float result[2][4];
                        perceptron<P>(result, values, step, in, out, step.shift != nullptr ? vectors + hidden : nullptr, lane_t);
                        if (step.second_shift != nullptr) add_vector(result, vectors + 2 * hidden, lane_t);
                        store_all(result, ChannelFirstPoints(step.field, step.channels, 0, outer, t.points, at, lane));
                    }
                    break;
                }
                if (i == plan.inbox_last) {
                    __syncwarp();
                    if (goes_on && (!last_of_row || after.point < t.points)) send_for(after);
                }
            };
            if constexpr (PROGRAM != 0) {
                unrolled<PROGRAM>(run);
            } else {
#pragma unroll 1
                for (int i = 0; i < t.steps; ++i) run(i, t.step[i].kind);
            }
            first = false;
            at = after;
        }
        if (columns > 0) {
            if (first) { // a warp without a tile in this row
                for (int i = lane; i < plan.sums_words; i += kLanes) own_sums[i] = float4{};
            }
            team.wait();
            const int row = unit / plan.splits, b = row / outer;
            const int64_t place = int64_t(b) * t.channels * outer + (row - b * outer);
            const int64_t part = plan.splits > 1 ? int64_t(split) * rows * t.channels : 0;
            write_spectra<FRAGMENTS>(reinterpret_cast<float2 *>(a.next) + (part + place) * t.next_modes, sums,
                                     plan.sums_words, t, columns, first_channel, team);
        }
        team.wait(); // spectra and sums have been read
        if (first && following < units && next_row.point < t.points) send_for(next_row);
        unit = following;
        at = next_row;
    }
    let_next_start();
}

// The programs of common networks are unrolled: a tenth fewer instructions, and loads that start early.
template <typename P, int FRAGMENTS> TileKernel kernel_of(const TileArguments &a) {
    if constexpr (FRAGMENTS == 4 || FRAGMENTS == 8) {
        switch (program_of(a.tile)) {
        case kLayer: return tile_program<P, FRAGMENTS, false, kLayer>;
        case kLayerAlone: return tile_program<P, FRAGMENTS, false, kLayerAlone>;
        case kBlock: return tile_program<P, FRAGMENTS, true, kBlock>;
        case kLastBlock: return tile_program<P, FRAGMENTS, true, kLastBlock>;
        case kNormedBlock: return tile_program<P, FRAGMENTS, true, kNormedBlock>;
        case kAfterNorm: return tile_program<P, FRAGMENTS, false, kAfterNorm>;
        case kLifting: return tile_program<P, FRAGMENTS, true, kLifting>;
        }
    }
    return a.plan.wide ? tile_program<P, FRAGMENTS, true, 0> : tile_program<P, FRAGMENTS, false, 0>;
}

template <typename P> TileKernel kernel_of(const TileArguments &a) {
    switch (a.plan.fragments) {
    case 2: return kernel_of<P, 2>(a);
    case 4: return kernel_of<P, 4>(a);
    case 8: return kernel_of<P, 8>(a);
    default: return kernel_of<P, 16>(a);
    }
}

} // namespace
} // namespace turbofno
