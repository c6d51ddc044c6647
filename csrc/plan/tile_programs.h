// Tile programs with kernels of their own: those of common networks. Host and device code.
#pragma once

#include "tile_plan.h"

namespace turbofno {

// In programs: an ADD_MAP of so few channels of the network's input that ordinary cores are faster than tensor cores, which take 16
// terms.
constexpr int kAddInput = TURBOFNO_PROJECT + 1, kMostInputs = 6;

inline bool is_input_map(const turbofno_step &step) {
    return step.kind == TURBOFNO_ADD_MAP && step.channel_first && step.terms <= kMostInputs;
}

// Encodes a program as a number: four bits per step, its kind plus one.
constexpr uint64_t program() { return 0; }
template <typename... Kinds> constexpr uint64_t program(int first, Kinds... others) {
    return uint64_t(first + 1) | program(others...) << 4;
}

// The kind of a step of a program; -1 after the last.
TURBOFNO_HOST_DEVICE constexpr int kind_of(uint64_t program, int step) { return int(program >> (4 * step) & 15) - 1; }

// True if the tile's steps are those of `program`, or all but a final analysis.
inline bool serves(uint64_t program, const turbofno_tile &tile) {
    const auto is = [](int kind, const turbofno_step &step) { return kind == kAddInput ? is_input_map(step) : kind == step.kind; };
    int i = 0;
    while (i < tile.steps && is(kind_of(program, i), tile.step[i])) ++i;
    return i == tile.steps && (kind_of(program, i) < 0 || (kind_of(program, i) == TURBOFNO_ANALYZE && kind_of(program, i + 1) < 0));
}

// True if a program has a step of this kind.
TURBOFNO_HOST_DEVICE constexpr bool has_step(uint64_t program, int kind) {
    for (; program != 0; program >>= 4) {
        if (int(program & 15) - 1 == kind) return true;
    }
    return false;
}

// True if a program has an MLP or a projection.
constexpr bool is_wide(uint64_t program) { return has_step(program, TURBOFNO_MLP) || has_step(program, TURBOFNO_PROJECT); }

// Programs of common networks. A kernel for one of them also serves it without the final analysis.
// turbofno_ops/_tile_program.py sorts commuting steps into this order.
constexpr uint64_t kLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kFirstLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, kAddInput, TURBOFNO_ACTIVATE,
                                         TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kLastLayer = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_PROJECT);
// Projected by one map, because the first map of the projection was folded into the layer: PhysicsNeMo's FNO with its defaults.
// Only for these channels and this activation.
constexpr uint64_t kLastActivated = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                            TURBOFNO_PROJECT);
constexpr int kLastActivatedWidth = 32;

// The activation of all steps of a common network (is_common) that have one.
TURBOFNO_HOST_DEVICE constexpr int common_activation(uint64_t program) {
    return program == kLastActivated ? TURBOFNO_SILU : TURBOFNO_GELU;
}

constexpr uint64_t kBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                    TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_ACTIVATE, TURBOFNO_STORE, TURBOFNO_ANALYZE);
constexpr uint64_t kLastBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_MLP,
                                        TURBOFNO_ADD_GATE, TURBOFNO_PROJECT);
constexpr uint64_t kNormedBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_ACTIVATE,
                                          TURBOFNO_MLP, TURBOFNO_ADD_GATE, TURBOFNO_STORE);
constexpr uint64_t kLastNormedBlock = program(TURBOFNO_SYNTHESIS, TURBOFNO_AFFINE, TURBOFNO_ADD_MAP, TURBOFNO_MLP,
                                              TURBOFNO_ADD_GATE, TURBOFNO_STORE);
constexpr uint64_t kAfterNorm = program(TURBOFNO_LOAD, TURBOFNO_AFFINE, TURBOFNO_ACTIVATE, TURBOFNO_STORE,
                                        TURBOFNO_ANALYZE);
constexpr uint64_t kAfterLastNorm = program(TURBOFNO_LOAD, TURBOFNO_AFFINE, TURBOFNO_PROJECT);
constexpr uint64_t kLifting = program(TURBOFNO_LOAD, TURBOFNO_MLP, TURBOFNO_STORE, TURBOFNO_ANALYZE);

// The programs with kernels of their own. The first that serves a tile is taken.
constexpr uint64_t kPrograms[] = {kFirstLayer, kLayer, kLastLayer, kLastActivated, kBlock, kLastBlock,
                                  kNormedBlock, kLastNormedBlock, kAfterNorm, kAfterLastNorm, kLifting};
constexpr int kMostFragments = 8; // of these kernels

// Those with kernels for 128 channels, for common networks and warpgroups only. Their weights leave no room to prefetch x. Layers
// without an MLP are faster as two blocks of 64 channels.
constexpr uint64_t kWidePrograms[] = {kBlock, kNormedBlock, kLastNormedBlock, kLifting};

// Plain layers, which have kernels for 20 channels, too.
constexpr uint64_t kPlainPrograms[] = {kFirstLayer, kLayer, kLastLayer};
constexpr int kPlainChannels = 20;

// The first and last step that read the prefetched field in common networks (find_prefetch in tile_plan.cpp); -1 if none does.
// The input of a network is channel first, so it is not prefetched.
TURBOFNO_HOST_DEVICE constexpr int first_prefetched(uint64_t program, int fragments) {
    if (program == kLifting || program == kFirstLayer || fragments > kMostFragments) return -1;
    int i = 0;
    while (kind_of(program, i) >= 0 && kind_of(program, i) != TURBOFNO_ADD_MAP && kind_of(program, i) != TURBOFNO_ADD_GATE) ++i;
    return kind_of(program, i) >= 0 ? i : 0;
}
TURBOFNO_HOST_DEVICE constexpr int last_prefetched(uint64_t program, int fragments) {
    int last = first_prefetched(program, fragments);
    if (last < 0) return last;
    for (int i = 0; kind_of(program, i) >= 0; ++i) {
        if (kind_of(program, i) == TURBOFNO_ADD_MAP || kind_of(program, i) == TURBOFNO_ADD_GATE) last = i;
    }
    return last;
}

// True if the kernel can compute a window of the grid that it reads (turbofno_window): those of common networks' last programs.
TURBOFNO_HOST_DEVICE constexpr bool has_window(uint64_t program, bool common) {
    return common && has_step(program, TURBOFNO_PROJECT);
}

template <size_t COUNT> bool any_serves(const uint64_t (&programs)[COUNT], const turbofno_tile &tile) {
    for (const uint64_t program : programs) {
        if (serves(program, tile)) return true;
    }
    return false;
}

// True for a plain program whose spectra have kPlainChannels.
inline bool is_plain_of_20(const turbofno_tile &tile) {
    return tile.width == 32 && tile.channels == kPlainChannels && any_serves(kPlainPrograms, tile);
}

constexpr int kMaxCommonInputs = 32;
// Of kBlock's MLP with at most kMostFragments: one chunk, so that its input and its result need not be in registers together.
constexpr int kCommonHidden = 32;

// True for what most networks have in common: every activation is GELU (common_activation), spectra and all fields but the network's
// own have as many channels as the tile, or in plain programs 20 of a tile of 32, and these fields are channels last. The network's
// input has few channels, and of up to 64 channels an MLP before an analysis has at most 32 hidden ones (zero-padded). The kernels for
// such programs take a sixth fewer instructions, and fewer registers.
inline bool is_common(const turbofno_tile &tile, int width) {
    const bool lifting = serves(kLifting, tile), block = serves(kBlock, tile), first = serves(kFirstLayer, tile);
    const bool activated = serves(kLastActivated, tile);
    if (activated && width != kLastActivatedWidth) return false;
    const int channels = is_plain_of_20(tile) ? kPlainChannels : width;
    if ((tile.modes > 0 || tile.next_modes > 0) && tile.channels != channels) return false;
    for (int i = 0; i < tile.steps; ++i) {
        const turbofno_step &step = tile.step[i];
        const bool maps = step.kind == TURBOFNO_MLP || step.kind == TURBOFNO_PROJECT;
        const bool input = is_input_map(step);
        const bool own = step.kind == TURBOFNO_PROJECT || (lifting && step.kind == TURBOFNO_LOAD) || input;
        const bool activates = step.kind == TURBOFNO_ACTIVATE || (maps && step.hidden > 0);
        if (activates && step.activation != common_activation(activated ? kLastActivated : 0)) return false;
        if (maps && (step.hidden == 0) != activated) return false;
        if (step.kind == TURBOFNO_MLP && block && width <= 8 * kMostFragments && step.hidden != kCommonHidden) return false;
        if (input && (!first || width > 8 * kMostFragments)) return false;
        if (((step.kind == TURBOFNO_ADD_MAP && !input) || (maps && !lifting)) && step.terms != channels) return false;
        if (maps && lifting && step.terms > kMaxCommonInputs) return false;
        if (step.channel_first != own || (!own && step.channels != channels)) return false;
    }
    return true;
}

} // namespace turbofno
