// How half_fft transforms lines, and its blocks.
#pragma once

#include "fft_plan.h"

namespace turbofno {

constexpr int kMinHalfPoints = 128, kMaxHalfPoints = 16384; // powers of two between these
constexpr int kMaxWarpPoints = 2048; // of a row that one warp transforms; a group of warps has a longer one
constexpr int kMaxColumnPoints = 512;
constexpr int64_t kMaxTwiddlePoints = int64_t(1) << 24; // whose indices float32 holds exactly
constexpr int kRowThreads = 128, kColumnThreads = 128;
constexpr int kHalfColumns = 16; // of a block: 64 bytes of each point
constexpr int kColumnRoots = 6; // of the twiddles of a column: of results 1, 2, 3 and 128, 256, 384

enum HalfFftLines {
    kRows, // points next to each other
    kColumns, // lines next to each other
    kRowsToColumns // points next to each other in the input, lines in the result
};

// Lines of a tile.
TURBOFNO_HOST_DEVICE constexpr int lines_at_once(int points) { return points == 128 ? 2 : 1; }

// Threads of a group, and the buffers of a line's size that it has.
TURBOFNO_HOST_DEVICE constexpr int group_threads(int points) { return points == 16384 ? 512 : 256; }
TURBOFNO_HOST_DEVICE constexpr int group_buffers(int points) { return points == 16384 ? 1 : 2; }

// The table: twiddles, then the two matrices of each tile of a line.
TURBOFNO_HOST_DEVICE constexpr int tiles_of_line(int points) { return points == 128 ? 1 : points / 256; }
constexpr int kTileBytes = 2048; // of twiddles, of a tile's matrices

struct HalfFftPlan {
    int arranged; // HalfFftLines
    int groups; // of a block, for long rows
    int64_t lines;
    Quotient by_inner; // columns: of blocks
    float shares[3]; // of the factor: of the two products, powers of two, and of the butterflies
    int threads, shared_bytes;
    int64_t blocks;
};

// Plans a transform, or returns the reason why the kernel does not support it.
const char *prepare(const turbofno_fft &fft, HalfFftPlan &p);

} // namespace turbofno
