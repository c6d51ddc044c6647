// Which kernel runs a tile program: those of common networks have their own (tile_programs.h).
#pragma once

#include "tile_program.cuh"

#include <iterator>
#include <type_traits>
#include <utility>

namespace turbofno {
namespace {

// The kernel for a program of common networks.
template <typename P, int FRAGMENTS, int COLUMNS, uint64_t PROGRAM, int CHANNELS = 8 * FRAGMENTS>
TileKernel common_kernel(const TileArguments &a) {
    const auto of_rows = [&](auto whole) {
        constexpr bool kWide = is_wide(PROGRAM), kWhole = decltype(whole)::value;
        return a.tile.channels_last ? tile_program<P, FRAGMENTS, kWide, COLUMNS, PROGRAM, CHANNELS, Layouts::kChannelsLast, kWhole>
                                    : tile_program<P, FRAGMENTS, kWide, COLUMNS, PROGRAM, CHANNELS, Layouts::kChannelsFirst, kWhole>;
    };
    return a.plan.splits == 1 && a.plan.split_segments == 0 ? of_rows(std::true_type{}) : of_rows(std::false_type{});
}

// The kernel for the first of these common programs that serves the tile's, or null.
template <typename P, int FRAGMENTS, int COLUMNS, int CHANNELS, uint64_t... PROGRAMS>
TileKernel common_kernel_of(const TileArguments &a) {
    TileKernel kernel = nullptr;
    ((serves(PROGRAMS, a.tile) && (kernel = common_kernel<P, FRAGMENTS, COLUMNS, PROGRAMS, CHANNELS>(a))) || ...);
    return kernel;
}

// The kernel for PROGRAM if it serves the tile's program, else that for one of the other programs, else the one that
// interprets any program. Unrolled at compile time a program takes fewer instructions, and loads can be hoisted.
template <typename P, int FRAGMENTS, int COLUMNS, uint64_t PROGRAM = 0, uint64_t... OTHERS>
TileKernel kernel_of_programs(const TileArguments &a) {
    if constexpr (PROGRAM == kLastActivated && 8 * FRAGMENTS != kLastActivatedWidth) {
        return kernel_of_programs<P, FRAGMENTS, COLUMNS, OTHERS...>(a);
    } else if constexpr (PROGRAM == 0) {
        return a.plan.wide ? tile_program<P, FRAGMENTS, true, COLUMNS, 0, 0, Layouts::kBoth>
                           : tile_program<P, FRAGMENTS, false, COLUMNS, 0, 0, Layouts::kBoth>;
    } else {
        constexpr bool kWide = is_wide(PROGRAM);
        if (a.plan.wide != kWide || !serves(PROGRAM, a.tile)) return kernel_of_programs<P, FRAGMENTS, COLUMNS, OTHERS...>(a);
        if (!a.common) {
            // of the others compiling takes long
            constexpr bool kHasKernel = FRAGMENTS == 2 ? PROGRAM == kLayer || PROGRAM == kFirstLayer
                                                       : FRAGMENTS <= kMostFragments && PROGRAM != kLastActivated;
            if constexpr (!kHasKernel) {
                return kernel_of_programs<P, FRAGMENTS, COLUMNS>(a);
            } else {
                return tile_program<P, FRAGMENTS, kWide, COLUMNS, PROGRAM, 0, Layouts::kBoth>;
            }
        }
        return common_kernel<P, FRAGMENTS, COLUMNS, PROGRAM>(a);
    }
}

template <typename P, int FRAGMENTS, int COLUMNS, size_t... I>
TileKernel kernel_of_all(const TileArguments &a, std::index_sequence<I...>) {
    if constexpr (FRAGMENTS <= kMostFragments) {
        return kernel_of_programs<P, FRAGMENTS, COLUMNS, kPrograms[I]...>(a);
    } else {
        return kernel_of_programs<P, FRAGMENTS, COLUMNS, kWidePrograms[I]...>(a);
    }
}

template <typename P, int FRAGMENTS, int COLUMNS> TileKernel kernel_of(const TileArguments &a) {
    if constexpr (FRAGMENTS <= kMostFragments) {
        return kernel_of_all<P, FRAGMENTS, COLUMNS>(a, std::make_index_sequence<std::size(kPrograms)>());
    } else if constexpr (COLUMNS > 0) {
        return kernel_of_all<P, FRAGMENTS, COLUMNS>(a, std::make_index_sequence<std::size(kWidePrograms)>());
    } else {
        return kernel_of_programs<P, FRAGMENTS, COLUMNS>(a);
    }
}

template <typename P> TileKernel kernel_of(const TileArguments &a) {
    switch (a.plan.fragments) {
    case 2: return kernel_of<P, 2, 0>(a);
    case 4:
        if constexpr (P::kSplit) {
            if (a.plan.wgmma()) return kernel_of<P, 4, kWgmmaColumns>(a);
        }
        return kernel_of<P, 4, 0>(a);
    case 8: return a.plan.wgmma() ? kernel_of<P, 8, kWgmmaColumns>(a) : kernel_of<P, 8, 0>(a);
    default: return a.plan.wgmma() ? kernel_of<P, 16, kWgmmaColumns>(a) : kernel_of<P, 16, 0>(a);
    }
}

} // namespace
} // namespace turbofno
