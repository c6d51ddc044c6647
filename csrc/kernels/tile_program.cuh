// The tile program: all steps between two spectral products, with one read and one write of the field.
//
// A warp takes 16 neighbouring points of a row, with all channels, through all steps without exchanging data with other
// warps (value layout: warp_mma.cuh). The warps of a group share a row: its mixed spectra, split once into shared memory,
// and the sums of the next layer's analysis, which are per warp until the end of the row. Weights and, if they fit, the
// row's tables are in shared memory for the whole block. The grid is persistent: blocks loop over rows. Warps drift out of
// phase, so that loads, products and activations of different warps overlap.
#pragma once

#include "l2_policy.h"
#include "pdl.cuh"
#include "row_spectra.cuh"
#include "tile.h"
#include "tile_steps.cuh"

#include <type_traits>

namespace turbofno {
namespace {

// Copies the fragment pairs of this block's channels of a B operand to shared memory.
template <typename P, typename B>
__device__ __forceinline__ void copy_operand(uint4 *to, const void *operand, int terms, int pairs_held, int first_pair,
                                             int pairs_all) {
    const auto *from = static_cast<const uint4 *>(operand);
    const int chunks = ceil_div(terms, 32);
    const auto *inv_scales = reinterpret_cast<const float *>(from + chunks * pairs_all * kPairWords<P>);
    float *to_inv_scales = inv_scales_of<P>(to, terms, pairs_held);
    for (int chunk = 0; chunk < chunks; ++chunk, from += pairs_all * kPairWords<P>) {
        for (int i = threadIdx.x; i < pairs_held * kPairWords<P>; i += blockDim.x) {
            const int pair = i / kPairWords<P>, word = i % kPairWords<P> / kLanes;
            const bool exists = first_pair + pair < pairs_all;
            const WordIndex at{chunk, word / P::kPlanes, pair, word % P::kPlanes, i % kLanes};
            B::copy(to, pairs_held, at, exists ? from + first_pair * kPairWords<P> + i : from, exists);
        }
        for (int i = threadIdx.x; i < pairs_held; i += blockDim.x) {
            const int pair = first_pair + i;
            const bool exists = pair < pairs_all;
            copy_async<4>(to_inv_scales + chunk * pairs_held + i, inv_scales + chunk * pairs_all + (exists ? pair : 0), exists);
        }
    }
}

__device__ __forceinline__ void copy_words(uint4 *to, const void *from, int words) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(to + i, static_cast<const uint4 *>(from) + i, true);
}

// Copies `count` entries of a vector over channels from `first` on, zero padded beyond its `size` entries.
__device__ __forceinline__ void copy_vector(float *to, const float *from, int count, int first, int size) {
    if (from == nullptr) return;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const bool exists = first + i < size;
        copy_async<4>(to + i, exists ? from + first + i : from, exists);
    }
}

// Calls run(i, kind) for the steps of a program known at compile time (tile.h), without a final analysis unless `analyzes`.
template <uint64_t PROGRAM, int I = 0, typename Run> __device__ __forceinline__ void for_each_step(bool analyzes, const Run &run) {
    if constexpr (constexpr int kKind = kind_of(PROGRAM, I); kKind >= 0) {
        if (kKind == TURBOFNO_ANALYZE && !analyzes) return;
        run(I, kKind);
        for_each_step<PROGRAM, I + 1>(analyzes, run);
    }
}

#ifdef TURBOFNO_WGMMA_ENABLED
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

// A step in common networks (is_common in tile_programs.h) of so many CHANNELS, with what it has in common known at compile time.
template <int CHANNELS, uint64_t PROGRAM> __device__ __forceinline__ turbofno_step common_step(turbofno_step step, int kind) {
    constexpr bool kInput = PROGRAM == kLifting;
    step.kind = kind;
    step.activation = common_activation(PROGRAM);
    if (kind != TURBOFNO_AFFINE) step.per_sample = 0;
    if (kind == TURBOFNO_PROJECT || kind == kAddInput || (kInput && kind == TURBOFNO_LOAD)) {
        step.channel_first = 1;
    } else {
        step.channel_first = 0;
        step.channels = CHANNELS;
    }
    if (kind != kAddInput && !(kInput && kind == TURBOFNO_MLP)) step.terms = CHANNELS;
    if (PROGRAM == kLastActivated) {
        step.hidden = 0;
        return step;
    }
    if (PROGRAM == kBlock && CHANNELS <= 8 * kMostFragments && kind == TURBOFNO_MLP) step.hidden = kCommonHidden;
    if (kind == TURBOFNO_MLP || kind == TURBOFNO_PROJECT) {
        if (step.hidden == 0) __builtin_unreachable();
    }
    return step;
}

// COLUMNS: of a wgmma analysis (TilePlan::columns).
// CHANNELS: of common networks; 0 for any network.
// WHOLE_ROWS: rows have one split and one segment.
template <typename P, int FRAGMENTS, bool WIDE, int COLUMNS, uint64_t PROGRAM, int CHANNELS, Layouts LAYOUTS, bool WHOLE_ROWS = false>
__global__ void __launch_bounds__(32 * max_warps(FRAGMENTS, WIDE, COLUMNS, CHANNELS > 0), 1)
    tile_program(const __grid_constant__ TileArguments a) {
    constexpr bool kCommon = CHANNELS > 0;
    constexpr bool WGMMA = COLUMNS > 0;
    if constexpr (WGMMA && !kHasWgmma) return;
    using Field = typename P::Field;
    using B = std::conditional_t<WGMMA, WgmmaOperandB<P>, MmaOperandB<P>>;
    constexpr int kInputChunks = kCommon && PROGRAM == kLifting ? kMaxCommonInputs / 32 : ceil_div(FRAGMENTS, 4); // of an MLP
    // Common programs begin with an inverse DFT, an affine step and a map. They fill y with the offset and add the map first,
    // while the spectra of the row arrive; these take the factor.
    constexpr bool kMapsFirst = kCommon && kind_of(PROGRAM, 0) == TURBOFNO_SYNTHESIS;
    constexpr bool kStagesLate = kMapsFirst && WGMMA;
    constexpr bool kCopiesRows = kStagesLate && LAYOUTS == Layouts::kChannelsLast; // of spectra, each by one bulk copy
    constexpr bool kStoresSplit = kCommon && P::kSplit && FRAGMENTS <= kMostFragments; // if it also analyses
    constexpr bool kWindow = has_window(PROGRAM, kCommon);
    extern __shared__ uint4 shared[];
    const turbofno_tile &t = a.tile;
    const TilePlan &plan = a.plan;
    // the shuffle tells the compiler that the warp index is uniform
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0), first_channel = kCommon ? 0 : blockIdx.y * (8 * FRAGMENTS);
    WarpGroupContext group;
    group.size = WGMMA ? kWarpgroupWarps : plan.group_warps;
    group.index = warp / group.size;
    group.rank = warp - group.index * group.size;
    group.lane = lane_index();
    const int lane = group.lane, lane_t = lane % 4;
    const int pairs_all = kCommon ? FRAGMENTS / 2 : ceil_div(t.width, 16), tiles = ceil_div(t.points, kTilePoints);
    const int chunks = ceil_div(2 * t.modes, 32), columns = ceil_div(2 * t.next_modes, 8);
    const int splits = WHOLE_ROWS ? 1 : plan.splits, split_tiles = WHOLE_ROWS ? tiles : plan.split_tiles;
    const int split_segments = WHOLE_ROWS ? 0 : plan.split_segments, segment_tiles = WHOLE_ROWS ? tiles : plan.segment_tiles;

    const auto step_of = [&](int i, int kind) { return kCommon ? common_step<CHANNELS, PROGRAM>(t.step[i], kind) : t.step[i]; };

    // prologue: weights and tables, all in flight at once; it may overlap the previous kernel unless that one writes them
    if (!t.weights_settled) pdl_wait();
    const auto copy_weights = [&](int i, int kind) {
        const turbofno_step step = step_of(i, kind);
        float *const vectors = reinterpret_cast<float *>(shared + plan.vectors_at[i]);
        if (kind == kAddInput) {
            auto *const to = reinterpret_cast<float *>(shared + plan.first_at[i]);
            for (int c = 0; c < step.terms; ++c) {
                const float *from = static_cast<const float *>(step.first) + c * t.width;
                copy_vector(to + c * (8 * FRAGMENTS), from, 8 * FRAGMENTS, first_channel, t.width);
            }
        } else if (kind == TURBOFNO_ADD_MAP) {
            copy_operand<P, B>(shared + plan.first_at[i], step.first, step.terms, FRAGMENTS / 2, first_channel / 16, pairs_all);
        } else if (kind == TURBOFNO_ADD_GATE || (kind == TURBOFNO_AFFINE && !step.per_sample)) {
            copy_vector(vectors, step.scale, 8 * FRAGMENTS, first_channel, t.width);
            copy_vector(vectors + 8 * FRAGMENTS, step.shift, 8 * FRAGMENTS, first_channel, t.width);
        } else if (WIDE && (kind == TURBOFNO_MLP || kind == TURBOFNO_PROJECT)) {
            const bool projects = kind == TURBOFNO_PROJECT;
            const int hidden = step.hidden / 16;
            if (hidden > 0) copy_operand<P, B>(shared + plan.first_at[i], step.first, step.terms, hidden, 0, hidden);
            if (projects_few(step)) {
                copy_words(shared + plan.second_at[i], step.second, step.channels * step.hidden / 4);
            } else {
                copy_operand<P, B>(shared + plan.second_at[i], step.second, hidden > 0 ? step.hidden : step.terms,
                                   projects ? 1 : FRAGMENTS / 2, 0, projects ? 1 : pairs_all);
            }
            copy_vector(vectors + step.hidden, step.shift, step.hidden, 0, step.hidden);
            copy_vector(vectors + 2 * step.hidden, step.second_shift, projects ? kMaxProjected : 8 * FRAGMENTS, 0,
                        projects ? kMaxProjected : t.width);
        }
    };
    if constexpr (PROGRAM != 0) {
        for_each_step<PROGRAM>(true, copy_weights);
    } else {
#pragma unroll 1
        for (int i = 0; i < t.steps; ++i) copy_weights(i, t.step[i].kind);
    }
    const bool on_chip = kCommon || plan.synthesis_on_chip;
    if (on_chip) {
        copy_words(shared + plan.synthesis_at, t.synthesis, plan.segment_tiles * chunks * 2 * P::kPlanes * kLanes);
    }
    if constexpr (WGMMA) {
        if (columns > 0) copy_analysis<P, COLUMNS>(shared + plan.analysis_at, t.analysis, plan.segment_tiles, columns);
    } else {
        copy_words(shared + plan.analysis_at, t.analysis, plan.segment_tiles * ceil_div(columns, 2) * P::kPlanes * kLanes);
    }
    const int own_at = plan.first_group + group.index * plan.group_words;
    uint4 *const own = shared + (WGMMA ? here(own_at) : own_at);
    uint4 *const sums_at = own + plan.sums_at;
    float4 *const sums = reinterpret_cast<float4 *>(sums_at);
    float4 *const own_sums = sums + group.rank * plan.sums_words;
    WgmmaSums<P, FRAGMENTS, WGMMA ? COLUMNS : kWgmmaColumns> wgmma_sums;
    commit_copies();

    const B spectra(own, 2 * t.modes, FRAGMENTS / 2, lane);
    const int outer = int(t.outer), rows = int(t.batch) * outer, units = rows * splits;
    const int groups = plan.warps / plan.group_warps;
    struct Unit { // a split of a row, the work item of a group, and this warp's first tile in it
        int split;
        TilePosition at;
    };
    const auto unit_of = [&](int index) {
        Unit unit;
        unit.at.row = index / splits;
        unit.split = index - unit.at.row * splits;
        unit.at.b = unit.at.row / outer;
        unit.at.o = unit.at.row - unit.at.b * outer;
        return unit;
    };
    const auto first_point = [&](int split) { // beyond the row's end for a warp without a tile in the split
        const int tile = split * split_tiles + group.rank;
        return tile < min(tiles, (split + 1) * split_tiles) ? tile * kTilePoints : t.points;
    };
    const auto after_unit = [&](Unit unit) { // by precomputed strides: divisions would cost as much as a product
        const int stride_split = WHOLE_ROWS ? 0 : plan.stride_split, carry = unit.split + stride_split >= splits;
        unit.split += stride_split - carry * splits;
        unit.at.row += plan.stride_row + carry;
        unit.at.b += plan.stride_batch;
        unit.at.o += plan.stride_outer + carry;
        if (unit.at.o >= outer) unit.at.o -= outer, ++unit.at.b;
        unit.at.point = first_point(unit.split);
        return unit;
    };
    const int prefetch_first = kCommon ? first_prefetched(PROGRAM, FRAGMENTS) : plan.prefetch_first;
    const int prefetch_last = kCommon ? last_prefetched(PROGRAM, FRAGMENTS) : plan.prefetch_last;
    const turbofno_step &prefetched = t.step[max(prefetch_first, 0)];
    uint4 *const buffer = own + plan.prefetch_at + group.rank * plan.prefetch_words;
    PrefetchBuffer prefetch(buffer + 1, buffer, prefetch_first >= 0, lane);
    // The same position on the grid that is read.
    const auto of_window = [&](TilePosition at) {
        if constexpr (kWindow) {
            const turbofno_window &w = t.window;
            const int plane = at.o < w.rows ? 0 : at.o / w.rows;
            at.o += w.first + plane * (w.pitch - w.rows);
            at.row = at.b * int(w.outer) + at.o;
        }
        return at;
    };
    const int read_outer = kWindow ? int(t.window.outer) : outer, read_points = kWindow ? t.window.points : t.points;
    const auto prefetch_points = [&](const TilePosition &at, int point) {
        if (prefetch_first < 0 || point >= t.points) return;
        const int bytes = pitch_of<Field>(kCommon ? CHANNELS : prefetched.channels) * int(sizeof(Field));
        const auto *from = static_cast<const char *>(prefetched.field) + (int64_t(of_window(at).row) * read_points + point) * bytes;
        prefetch.load_async(from, min(kTilePoints, t.points - point) * bytes, a.fields_policy, lane);
    };
    float2 *const copied = plan.copied_at < 0 ? nullptr : reinterpret_cast<float2 *>(own + plan.copied_at);
    const auto spectra_channels = [&] { return kCommon ? CHANNELS : here(t.channels); };
    // Where late staging finds the copy's place in use before, the copy starts when a row begins, else while the last one is computed.
    const bool copies_early = !kStagesLate || (kCopiesRows && plan.copied_at < plan.sums_at);
    PrefetchBuffer row_spectra(own + plan.copied_at, own + plan.barrier_at, kCopiesRows && copied != nullptr && group.rank == 0, lane);
    const auto prefetch_spectra = [&](const TilePosition &at) {
        if (chunks == 0 || copied == nullptr) return;
        const uint64_t policy = segment_tiles < tiles ? kEvictNormal : kEvictFirst; // each segment reads them
        const TilePosition place = of_window(at);
        if constexpr (kCopiesRows) {
            const SpectraLayout<true> layout{t.window.outer, here(t.modes), spectra_channels()};
            const float2 *const row = reinterpret_cast<const float2 *>(t.mixed) + layout.row(place.b, place.o);
            const int bytes = layout.modes * layout.channels * int(sizeof(float2));
            if (group.rank == 0) row_spectra.load_async(reinterpret_cast<const char *>(row), bytes, policy, lane);
        } else {
            copy_spectra<LAYOUTS>(copied, t, spectra_channels(), place, FRAGMENTS / 2, first_channel, policy, group);
        }
    };
    const auto clear_sums = [&] {
        for (int i = lane; i < plan.sums_words; i += kLanes) own_sums[i] = float4{};
    };
    int index = blockIdx.x * groups + group.index;
    Unit unit = unit_of(index);
    unit.at.point = first_point(unit.split);
    if (!WGMMA) clear_sums();
    pdl_wait();
    pdl_trigger_of_small_grid();
    if (index < units) {
        if (copies_early) prefetch_spectra(unit.at);
        prefetch_points(unit.at, unit.at.point);
    }
    wait_copies<0>(); // weights and tables
    if constexpr (WGMMA) fence_proxy_async();
    __syncthreads();

    while (index < units) {
        TilePosition at = unit.at;
        const bool goes_on = index + plan.stride < units;
        const auto next = [&] { return goes_on ? after_unit(unit) : unit; }; // computed anew, or it would take registers
        if constexpr (WGMMA) wgmma_sums.clear();
        const int from = unit.split * split_tiles, end = min(tiles, from + split_tiles);
        // splits of segmented rows are whole segments
        for (int segment = unit.split * split_segments, segment_at = segment * segment_tiles; segment_at < end;
             ++segment, segment_at += segment_tiles) {
            const int segment_end = min(end, segment_at + segment_tiles);
            const auto phases_of = [&](const float *phases, int modes) {
                return WHOLE_ROWS || phases == nullptr ? nullptr : reinterpret_cast<const float2 *>(phases) + segment * modes;
            };
            const SegmentPhases analysis_phases{phases_of(t.analysis_phases, t.next_modes), t.next_modes};
            const auto stage = [&] {
                const turbofno_step &affine = t.step[1];
                const bool has_factors = kMapsFirst && affine.scale != nullptr;
                const float *factors = has_factors ? affine.scale + affine.per_sample * at.b * t.width : nullptr;
                if (copied != nullptr) {
                    if constexpr (kCopiesRows) {
                        row_spectra.wait();
                    } else {
                        wait_copies<0>();
                        __syncwarp();
                    }
                }
                stage_spectra<P, LAYOUTS, kCopiesRows, B>(own, copied, t, spectra_channels(), of_window(at),
                                                          phases_of(t.synthesis_phases, t.modes), factors, FRAGMENTS / 2,
                                                          first_channel, group);
                if constexpr (WGMMA) fence_proxy_async();
                group.sync();
                const bool last = segment_at + segment_tiles >= end;
                if (copies_early && (last ? goes_on : kCopiesRows)) prefetch_spectra(last ? next().at : unit.at);
            };
            if (chunks > 0) {
                if (segment_at > from) group.sync(); // the spectra have been read
                if (!copies_early) prefetch_spectra(unit.at);
                if (!kStagesLate) stage();
            }
            // wgmma needs all four warps of the warpgroup, so a warp without a tile runs the loop too
            for (int tile = max(from, segment_at) + group.rank; tile - (WGMMA ? group.rank : 0) < segment_end; tile += group.size) {
                const bool last_of_row = tile + group.size - (WGMMA ? group.rank : 0) >= end;
                float values[FRAGMENTS][4] = {};
                // Splits the values for an analysis, by one scale; `store` takes the words of 16 channels.
                uint4 words[WGMMA ? 1 : FRAGMENTS / 2][2];
                float inv_scale = 1.0f;
                const auto split_values = [&](const auto &store) {
                    if (at.point + kTilePoints > t.points) zero_behind(values, at.point + lane / 4, t.points);
                    Scale scale{1.0f, 1.0f};
                    if constexpr (WGMMA) {
                        scale = wgmma_sums.scale(values, sums_at, group);
                    } else if constexpr (P::kScaled) {
                        scale = scale_of(max_of_warp(values));
                    }
                    inv_scale = scale.inverse;
#pragma unroll
                    for (int s = 0; s < FRAGMENTS / 2; ++s) {
                        uint4(&now)[2] = words[WGMMA ? 0 : s];
                        split_points<P>(now, values, s, scale.factor);
                        store(s, now);
                        if constexpr (WGMMA) wgmma_sums.stage(now, s, sums_at, group);
                    }
                };
                const auto scale_index = [&](int row, int row_tiles) { // of a split field
                    return int64_t(row) * row_tiles + min(tile, tiles - 1);
                };
                const bool x_is_split = P::kSplit && t.x_scales != nullptr;
                const int x_tiles = kWindow ? ceil_div(read_points, kTilePoints) : tiles;
                const float x_inv_scale = x_is_split ? t.x_scales[scale_index(of_window(at).row, x_tiles)] : 1.0f;
                // inlined, or else y would lie in memory
                const auto run = [&](int i, int kind) __attribute__((always_inline)) {
                    const turbofno_step step = step_of(i, kind);
                    const float *vectors = reinterpret_cast<const float *>(shared + plan.vectors_at[i]);
                    const auto read = [&](int from_channel, const auto &use) {
                        const TilePosition place = of_window(at);
                        if (step.channel_first) {
                            return use(ChannelFirstPoints(step.field, step.channels, from_channel, read_outer, read_points, place, lane));
                        }
                        const auto use_points = [&](const auto &points) {
                            if constexpr (P::kSplit) {
                                using From = std::decay_t<decltype(points)>;
                                if (x_is_split && kind != TURBOFNO_LOAD) return use(SplitPoints<From>{points, x_inv_scale});
                            }
                            use(points);
                        };
                        if (i >= prefetch_first && i <= prefetch_last) {
                            use_points(PrefetchedPoints<Field>(buffer + 1, step.channels, from_channel, lane));
                        } else {
                            use_points(Points<Field>(step.field, step.channels, from_channel, read_points, place, lane));
                        }
                    };
                    if (i == prefetch_first && (!WGMMA || at.point < t.points)) prefetch.wait();
                    switch (kind) {
                    case TURBOFNO_LOAD:
                        read(first_channel, [&](const auto &x) { load_all(values, x); });
                        break;
                    case TURBOFNO_SYNTHESIS:
                        if (kStagesLate && tile - group.rank == max(from, segment_at)) stage();
                        if (const int at = min(tile - segment_at, segment_tiles - 1); on_chip) {
                            synthesize<true, P>(values, shared + plan.synthesis_at, at, 2 * t.modes, spectra,
                                                a.synthesis_inv_scale, lane);
                        } else {
                            synthesize<false, P>(values, static_cast<const uint4 *>(t.synthesis), at, 2 * t.modes, spectra,
                                                 a.synthesis_inv_scale, lane);
                        }
                        break;
                    case TURBOFNO_AFFINE:
                        if (kMapsFirst && i == 1) {
                            const float *shift = step.per_sample ? step.shift + at.b * t.width : vectors + 8 * FRAGMENTS;
                            if (step.shift != nullptr) set_vector(values, shift, lane_t);
                        } else if (step.per_sample) {
                            const int sample = at.b * t.width + first_channel, left = t.width - first_channel;
                            scale_by(values, step.scale + sample, lane_t, left);
                            add_vector(values, step.shift + sample, lane_t, left);
                        } else {
                            if (step.scale != nullptr) scale_by(values, vectors, lane_t);
                            if (step.shift != nullptr) add_vector(values, vectors + 8 * FRAGMENTS, lane_t);
                        }
                        break;
                    case kAddInput:
                        if constexpr (PROGRAM == kFirstLayer) {
                            // from the first channel on, whatever the lane
                            const ChannelFirstPoints x(step.field, step.channels, 0, outer, t.points, at, lane - lane_t);
                            add_few(values, x, reinterpret_cast<const float *>(shared + plan.first_at[i]), step.terms, lane_t);
                        }
                        break;
                    case TURBOFNO_ADD_MAP: {
                        const B map(shared + plan.first_at[i], step.terms, FRAGMENTS / 2, lane);
                        read(0, [&](const auto &x) { add_map<P, (kCommon && FRAGMENTS > kMostFragments)>(values, x, step.terms, map); });
                        break;
                    }
                    case TURBOFNO_ADD_GATE:
                        read(first_channel, [&](const auto &x) { add_gate(values, x, vectors, lane_t); });
                        break;
                    case TURBOFNO_ACTIVATE:
                        activate<P>(values, step.activation, step.parameter);
                        break;
                    case TURBOFNO_MLP:
                        if constexpr (WIDE) {
                            const B in(shared + plan.first_at[i], step.terms, step.hidden / 16, lane);
                            const B out(shared + plan.second_at[i], step.hidden > 0 ? step.hidden : step.terms, FRAGMENTS / 2, lane);
                            float result[FRAGMENTS][4];
                            mlp<P, kInputChunks>(result, values, step, in, out, vectors + step.hidden, lane_t);
#pragma unroll
                            for (int j = 0; j < FRAGMENTS; ++j) {
#pragma unroll
                                for (int e = 0; e < 4; ++e) values[j][e] = result[j][e];
                            }
                        }
                        break;
                    case TURBOFNO_STORE: {
                        if (step.channel_first) {
                            store_all(values, ChannelFirstPoints(step.field, step.channels, first_channel, outer, t.points, at, lane));
                            break;
                        }
                        Points<Field> to(step.field, step.channels, first_channel, t.points, at, lane);
                        to.policy = a.fields_policy;
                        if (kStoresSplit && columns > 0) {
                            split_values([&](int s, const uint4(&of_points)[2]) {
                                to.store(s, {as_floats(of_points[0]), as_floats(of_points[1])});
                            });
                            if (lane == 0 && tile < tiles) t.scales[scale_index(at.row, tiles)] = inv_scale;
                        } else {
                            store_all(values, to);
                        }
                        break;
                    }
                    case TURBOFNO_ANALYZE:
                        if constexpr (!kStoresSplit) split_values([](int, const uint4(&)[2]) {});
                        if constexpr (WGMMA) {
                            wgmma_sums.add(sums_at, shared + plan.analysis_at, tile - group.rank - segment_at,
                                           inv_scale * a.analysis_inv_scale, analysis_phases, group);
                        } else {
                            analyze<P, FRAGMENTS>(own_sums, words, shared + plan.analysis_at, tile - segment_at, columns,
                                                  inv_scale * a.analysis_inv_scale, analysis_phases, lane);
                        }
                        break;
                    case TURBOFNO_PROJECT:
                        if constexpr (WIDE) {
                            const B in(shared + plan.first_at[i], step.terms, step.hidden / 16, lane);
                            const B out(shared + plan.second_at[i], step.hidden > 0 ? step.hidden : step.terms, 1, lane);
                            float result[2][4];
                            if (projects_few(step)) {
                                const auto *weights = reinterpret_cast<const float *>(shared + plan.second_at[i]);
                                project_few<P, kInputChunks>(result, values, step, in, weights, vectors + step.hidden, lane_t);
                                add_vector(result, vectors + 2 * step.hidden, lane_t);
                            } else {
                                mlp<P, kInputChunks>(result, values, step, in, out, vectors + step.hidden, lane_t);
                            }
                            store_all(result, ChannelFirstPoints(step.field, step.channels, 0, outer, t.points, at, lane));
                        }
                        break;
                    }
                    if (i == prefetch_last) {
                        if (!last_of_row) {
                            if (!WGMMA || tile + group.size < end) prefetch_points(unit.at, at.point + group.size * kTilePoints);
                        } else if (goes_on) {
                            const Unit after = next();
                            prefetch_points(after.at, after.at.point);
                        }
                    }
                };
                if constexpr (kMapsFirst) {
                    run(1, TURBOFNO_AFFINE);
                    run(2, kind_of(PROGRAM, 2));
                    run(0, TURBOFNO_SYNTHESIS);
                    for_each_step<PROGRAM, 3>(columns > 0, run);
                } else if constexpr (PROGRAM != 0) {
                    for_each_step<PROGRAM>(columns > 0, run);
                } else {
#pragma unroll 1
                    for (int i = 0; i < t.steps; ++i) run(i, t.step[i].kind);
                }
                at.point = !WGMMA || tile + group.size < end ? at.point + group.size * kTilePoints : t.points;
            }
        }
        if (columns > 0) {
            if constexpr (!WGMMA) group.sync();
            with_layout<LAYOUTS>(t.channels_last, [&](auto channels_last) {
                const SpectraLayout<decltype(channels_last)::value> layout{t.outer, here(t.next_modes), spectra_channels()};
                const int64_t part = splits > 1 ? int64_t(unit.split) * rows * t.channels * t.next_modes : 0;
                auto *const row = reinterpret_cast<float2 *>(a.next) + part + layout.row(unit.at.b, unit.at.o);
                if constexpr (WGMMA) {
                    wgmma_sums.write(layout, row, first_channel, sums_at, group);
                } else {
                    write_spectra<FRAGMENTS>(layout, row, sums, plan.sums_words, columns, first_channel, group);
                }
            });
        }
        group.sync(); // spectra and sums have been read and may be overwritten
        if (!WGMMA && goes_on) clear_sums();
        const bool had_no_tile = unit.at.point >= t.points;
        unit = next();
        if (!WGMMA && had_no_tile && goes_on) prefetch_points(unit.at, unit.at.point);
        index += plan.stride;
    }
    pdl_trigger();
}

} // namespace
} // namespace turbofno
