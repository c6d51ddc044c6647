// Inverse DFT along the last axis, pointwise skip, bias and activation: one read of x, one write of y. While y is in
// registers, the next layer's analysis is made of it, or the projection to few channels instead of y.
//
// For one row (b, h) and all channels this is one real matrix product,
//     y[o, w] = activation([R' | skip][o, :] . [S ; x][:, w] + bias[o])
// R' the row's mixed spectrum, S the synthesis table: the skip is only more terms in the inverse DFT's sum.
//
// A group of warps (plan/rows_plan.h) takes one row after another, in chunks of kChunk points; each of its warps holds
// kRows output channels, as left operands that are split once: the skip once a block, R' once a row. x is the right
// operand: split once for the group's warps, into a tile [channel][point] of halves in shared memory, `slab` channels
// at a time, the next of which is on its way in registers. In the tile, points stand in the order of the fragments'
// columns (row_quads.cuh).
//
// S and the next table come split. They lie in shared memory for the whole row, or for this chunk and the next one,
// and the groups of a block then go through their rows in step; or, where there is no room for that, they come through
// L1, slowly: a hit there waits behind the misses of x.
#include <algorithm>

#include "activations.cuh"
#include "architecture.h"
#include "partial_sums.h"
#include "row_group_product.cuh"
#include "row_operands.cuh"
#include "row_results.cuh"

namespace turbofno {
namespace {

// How products find their operands: warp by warp, the tables through L1 or in shared memory; or a group of four warps
// at once, on Hopper.
enum class Way { kThroughL1, kShared, kGroup };

template <typename P> constexpr int most_warps(Way way) {
    if (way == Way::kGroup) return P::kScaled ? kWarpsTogether : kWarps;
    return way == Way::kShared ? kWarps : kWarpsThroughL1;
}

template <typename P, bool WHOLE, Way WAY>
__global__ void __launch_bounds__(32 * most_warps<P>(WAY), 1) fourier_rows(const RowsArguments a) {
    if constexpr (WAY == Way::kGroup && !kWarpgroups) return; // never launched there
    constexpr bool SHARED = WAY != Way::kThroughL1, GROUP = kWarpgroups && WAY == Way::kGroup;
    using Field = typename P::Field;
    extern __shared__ uint4 shared[];
    const RowsPlan &plan = a.plan;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    const int skip_steps = sixteens(a.c_in), steps = sixteens(a.columns), column_pairs = sixteens(a.next_columns);
    const int chunks = ceil_div(a.w, kChunk), slot_words = (steps + column_pairs) * (kPairs * kRightWords<P>);

    Team team;
    team.threads = 32 * plan.warps;
    team.group = warp / plan.warps;
    team.member = warp - team.group * plan.warps;
    team.thread = threadIdx.x - team.group * team.threads;
    team.first_channel = (blockIdx.y * plan.warps + team.member) * kRows;
    uint4 *own = shared + plan.first_group + team.group * plan.group_words;
    team.tile = own;
    team.spectra = own + plan.spectra + team.member * kTiles * steps * kLeftWords<P>;
    team.sums = reinterpret_cast<float4 *>(own + plan.sums) + team.member * kTiles * column_pairs * 64;
    team.maxima = reinterpret_cast<unsigned *>(own + plan.maxima);
    team.skip = shared + team.member * kTiles * skip_steps * kLeftWords<P>;
    float *skip_scales = reinterpret_cast<float *>(shared + plan.skip_scales);

    const int units = ceil_div(a.rows, plan.groups) * plan.splits;
    int unit = blockIdx.x;
    typename Quad<Field>::type quads[kQuads];
    Place at = place(a, unit, team.group);
    if (a.c_in > 0) load_slab<WHOLE, Field>(quads, a, team, at, 0);

    clear_analysis(team.sums, column_pairs);

    uint4 *slots = shared + plan.tables;
    const bool streams = SHARED && plan.slots < chunks;
    int slot = 0;
    if (streams) {
        fetch_tables<P>(slots, a, at.chunk);
    } else if (SHARED) {
        for (int chunk = 0; chunk < chunks; ++chunk) fetch_tables<P>(slots + chunk * slot_words, a, chunk);
    }
    commit_copies();
    if (a.c_in > 0) {
        for (int m = team.group; m < kTiles; m += plan.groups) {
            const int channel = team.first_channel + 16 * m;
            float back[2];
            LeftStage<P, false> stage(a.skip + int64_t(channel) * a.c_in, a.c_in, a.c_out - channel, a.c_in);
            stage.store(shared + (team.member * kTiles + m) * skip_steps * kLeftWords<P>, back, a.c_in);
            float *scales = skip_scales + kRows * team.member + 16 * m;
            scales[g] = back[0];
            scales[g + 8] = back[1];
        }
    }
    if (!streams) wait_copies<0>();
    if constexpr (GROUP) show_to_tensor_cores();
    __syncthreads();
    Rows skip_back, bias;
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
        const int o = team.first_channel + g + 8 * part;
        bias[part / 2][part % 2] = a.bias != nullptr && o < a.c_out ? a.bias[o] : 0.0f;
        skip_back[part / 2][part % 2] = a.c_in > 0 ? skip_scales[kRows * team.member + g + 8 * part] : 0.0f;
    }

    const unsigned tile_address = static_cast<unsigned>(__cvta_generic_to_shared(team.tile)) +
                                  (lane % 16) * (2 * kTilePitch) + lane / 16 * 16;
    const unsigned low_address = tile_address + plan.slab * (2 * kTilePitch);
    const auto from_tile = [&](Right &right, int step, int pair) {
        const unsigned offset = step * (16 * 2 * kTilePitch) + pair * 32;
        load_matrices(right.high, tile_address + offset);
        if constexpr (P::kSplit) load_matrices(right.low, low_address + offset);
    };

    for (;;) {
        unit += gridDim.x;
        const bool last = unit >= units;
        const Place after = last ? at : place(a, unit, team.group);
        const int begin = at.chunk, end = min(chunks, begin + plan.split_chunks);
        Rows back;
        stage_spectra<P>(team, a, at, steps, back);
        for (; at.chunk < end; ++at.chunk) {
            const bool half = a.w - at.chunk * kChunk <= kChunk / 2;
            const uint4 *table = slots + (streams ? slot : at.chunk) * slot_words;
            const uint4 *next_table = table + steps * (kPairs * kRightWords<P>);
            if (streams) {
                wait_copies<0>();
                if constexpr (GROUP) show_to_tensor_cores();
                __syncthreads(); // this chunk's tables are there, and those of the chunk before have been read
                slot ^= 1;
                if (at.chunk + 1 < end || !last) {
                    fetch_tables<P>(slots + slot * slot_words, a, at.chunk + 1 < end ? at.chunk + 1 : after.chunk);
                }
                commit_copies();
            } else if (!SHARED) {
                table = a.table + int64_t(at.chunk) * steps * (kPairs * kRightWords<P>);
                next_table = a.next_table + int64_t(at.chunk) * column_pairs * (kPairs * kRightWords<P>);
            }
            float slab_back = a.c_in > 0 ? stage_slab<P, GROUP>(team, quads, plan.slab) : 0.0f;
            Values values;
            const auto from_table = [&](Right &right, int step, int pair) {
                load_right<P, SHARED>(right, table + (step * kPairs + pair) * kRightWords<P>);
            };
            if constexpr (GROUP) {
                const auto right = table_operand(table, kTablePitch<P>, kPairs * kRightWords<P>);
                add_group_product<P, false, true>(values, bias, team.spectra, steps, right, back);
            } else if (half) {
                add_product<P, true, true>(values, bias, team.spectra, steps * kLeftWords<P>, steps, from_table, back);
            } else {
                add_product<P, false, true>(values, bias, team.spectra, steps * kLeftWords<P>, steps, from_table, back);
            }
            for (int channel = 0; channel < a.c_in; channel += plan.slab) {
                if (channel > 0) {
                    load_slab<WHOLE, Field>(quads, a, team, at, channel);
                    slab_back = stage_slab<P, GROUP>(team, quads, plan.slab);
                }
                const uint4 *left = team.skip + channel / 16 * kLeftWords<P>;
                const int slab_steps = sixteens(min(plan.slab, a.c_in - channel));
                const int tile_words = skip_steps * kLeftWords<P>;
                Rows scale;
#pragma unroll
                for (int i = 0; i < 2 * kTiles; ++i) scale[i / 2][i % 2] = slab_back * skip_back[i / 2][i % 2];
                if constexpr (GROUP) {
                    const auto right = tile_operand(team.tile, plan.slab * (kSwizzledPitch / 8));
                    add_group_product<P, true, false>(values, bias, left, slab_steps, right, scale);
                } else if (half) {
                    add_product<P, true, false>(values, bias, left, tile_words, slab_steps, from_tile, scale);
                } else {
                    add_product<P, false, false>(values, bias, left, tile_words, slab_steps, from_tile, scale);
                }
            }
            // the next x is sent for once the products' operands no longer take up registers; and a warpgroup's
            // products would wait for loads under way
            const Place next = at.chunk + 1 < end ? Place{at.b, at.h, at.split, at.chunk + 1} : after;
            if (a.c_in > 0) load_slab<WHOLE, Field>(quads, a, team, next, 0);
            activate<P>(values, a.activation);
            if (a.projected > 0) {
                float *sums = reinterpret_cast<float *>(own + plan.sums);
                project(sums + team.member * a.projected * kChunk, values, a, team);
                team.wait();
                store_projection(sums, a, team, at);
                team.wait();
                continue;
            }
            if constexpr (WHOLE) {
                store_chunk<Field>(values, a, team, at);
            } else {
                team.wait();
                store_odd_chunk<Field>(values, a, team, at);
            }
            if (a.next_columns > 0) {
                Left left[kTiles][kPairs];
                Rows scale;
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    split_rows<P>(values[m], left[m], scale[m]);
                    scale[m][0] *= a.next_back, scale[m][1] *= a.next_back;
                }
                if constexpr (GROUP) {
                    add_group_analysis<P>(team.sums, left[0], scale[0], next_table, column_pairs);
                } else if (half) {
                    add_analysis<P, SHARED, true>(team.sums, left, scale, next_table, column_pairs);
                } else {
                    add_analysis<P, SHARED, false>(team.sums, left, scale, next_table, column_pairs);
                }
            }
        }
        if (a.next_columns > 0) {
            const int64_t row = at.split * int64_t(a.rows) * a.c_out + row_of(at, a.c_out, team.first_channel, a.h);
            store_analysis(a.next_sums + row * a.next_columns, int64_t(a.h) * a.next_columns,
                           a.c_out - team.first_channel, a.next_columns, team.sums);
            clear_analysis(team.sums, column_pairs);
        }
        if (last) return;
        at = after;
    }
}

template <typename P> auto kernel_of(bool whole, Way way) {
    switch (way) {
    case Way::kThroughL1:
        return whole ? fourier_rows<P, true, Way::kThroughL1> : fourier_rows<P, false, Way::kThroughL1>;
    case Way::kShared:
        return whole ? fourier_rows<P, true, Way::kShared> : fourier_rows<P, false, Way::kShared>;
    default:
        return whole ? fourier_rows<P, true, Way::kGroup> : fourier_rows<P, false, Way::kGroup>;
    }
}

// Warpgroups are of compute capability 9.0 alone, and of code for it.
bool is_hopper() { return code_architecture() == 90; }

template <typename P> turbofno_status launch(const turbofno_rows &r, cudaStream_t stream) {
    RowsArguments a{};
    int device = 0, shared_bytes = kRowsSharedBytes;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    a.plan = plan(r, shared_bytes, is_hopper());
    const RowsPlan &p = a.plan;
    float *parts = static_cast<float *>(r.workspace);
    a.x = r.x, a.skip = r.skip, a.bias = r.bias, a.spectra = r.spectra, a.y = r.y;
    a.rows = int(r.batch * r.h);
    a.c_in = r.c_in, a.c_out = r.c_out, a.h = r.h, a.w = r.w;
    a.columns = 2 * r.modes, a.next_columns = 2 * r.next_modes;
    a.projected = r.projected, a.activation = r.activation;
    a.table = row_table<P>(r.table, r.w, a.columns, p.together);
    a.next_table = row_table<P>(r.next_table, r.w, a.next_columns, p.together);
    a.next_back = P::kScaled ? analysis_table_back(r.w) : 1.0f;
    const bool sum_next = p.splits > 1 && r.next_modes > 0, sum_tiles = p.channel_tiles > 1 && r.projected > 0;
    a.next_sums = sum_next ? parts : r.next_spectra;
    a.projection = r.projection;
    a.projection_bias = sum_tiles ? nullptr : r.projection_bias;
    a.out = sum_tiles ? parts : r.out;

    const bool whole = r.w % 4 == 0;
    const Way way = p.together ? Way::kGroup : p.slots > 0 ? Way::kShared : Way::kThroughL1;
    const auto kernel = kernel_of<P>(whole, way);
    const int threads = 32 * p.warps * p.groups;
    const int resident = resident_blocks(kernel, threads, p.shared_bytes, shared_bytes, r.multiprocessors);
    const int units = ceil_div(a.rows, p.groups) * p.splits;
    const int blocks = std::min(units, ceil_div(resident, p.channel_tiles));
    kernel<<<dim3(blocks, p.channel_tiles), threads, p.shared_bytes, stream>>>(a);
    const turbofno_status status = launched();
    if (status != TURBOFNO_OK) return status;
    const int64_t plane = int64_t(r.h) * r.w;
    if (sum_next) {
        return add_parts(r.next_spectra, parts, int64_t(a.rows) * r.c_out * a.next_columns, p.splits, nullptr, 1, 1,
                         stream);
    }
    if (sum_tiles) {
        return add_parts(r.out, parts, r.batch * r.projected * plane, p.channel_tiles, r.projection_bias, plane,
                         r.projected, stream);
    }
    return TURBOFNO_OK;
}

bool complete(const turbofno_rows &r) {
    const bool skip = r.c_in == 0 || (r.x != nullptr && r.skip != nullptr);
    const bool result = r.projected > 0 ? r.projection != nullptr && r.out != nullptr : r.y != nullptr;
    const bool next = r.next_modes == 0 || (r.next_table != nullptr && r.next_spectra != nullptr);
    const bool workspace = r.workspace != nullptr || turbofno_rows_workspace_bytes(&r) == 0;
    return r.spectra != nullptr && r.table != nullptr && skip && result && next && workspace;
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_fourier_rows(const turbofno_rows *rows, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_rows_unsupported(rows) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (!complete(*rows)) return TURBOFNO_NULL_POINTER;
    switch (rows->precision) {
    case TURBOFNO_TF32: return launch<Tf32>(*rows, stream);
    case TURBOFNO_BF16: return launch<Bf16>(*rows, stream);
    default: return launch<Fp32>(*rows, stream);
    }
}
