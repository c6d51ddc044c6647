// Block layout of the dense discrete Fourier transforms. Host code only, but for the constants.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

constexpr int kDftTerms = 32; // of a chunk, two steps of the tensor cores
constexpr int kDftColumns = 8; // of a fragment
constexpr int kDftRows = 64; // of a warpgroup: real lines, or the real and imaginary parts of half as many complex lines
constexpr int kDftLineBytes = 4608; // of a stage: a warp's chunk of lines, or its results on their way out
constexpr int kDftPlaneBytes = 2 * 2 * 2 * 128; // of a chunk and fragment of the table: cosines and sines, steps, halves

// A table has a term for each n and a column for each k, 0 .. points / 2; a warpgroup multiplies 64 rows by the columns of one
// group. Its sums are `tiles` times `fragments` for the cosines and as many for the sines.
struct DenseDftPlan {
    int fragments, tiles, warpgroups;
    int chunks; // of terms that are not zero
    bool last_is_short; // the last chunk has at most half as many terms
    int table_fragments; // of a chunk of the table
    int groups, group_fragments; // of columns; fragments of a group, at most fragments * tiles
    bool resident; // the table of a group stays in shared memory, else its chunks come through the ring
    int stages; // of the ring; 0 if shared memory does not hold two
    int lines_at, shared_bytes;
    int units, blocks; // of 64 rows; of a group
};

struct DenseDftShape {
    int fragments, tiles, warpgroups;
};
// By registers: a warpgroup's sums, and a tile's products twice.
constexpr DenseDftShape kDenseDftShapes[] = {{4, 1, 4}, {6, 1, 3}, {5, 2, 2}, {7, 2, 2}};

constexpr int dense_dft_warpgroups(int fragments) { return fragments == 4 ? 4 : fragments == 6 ? 3 : 2; }

// Values of a line on its complex or its real side.
int dft_values(const turbofno_fft &fft, bool complex_side);

// Plans a transform, or returns the reason why the kernel does not support it.
const char *prepare(const turbofno_fft &fft, DenseDftPlan &p);

} // namespace turbofno
