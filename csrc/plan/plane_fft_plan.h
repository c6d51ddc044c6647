// Layout of plane_fft: planes in shared memory. Host code only.
#pragma once

#include "fft_plan.h"

namespace turbofno {

constexpr int kMinPlaneThreads = 128, kMaxPlaneThreads = 384; // of a block
constexpr int kPlaneBlocks = 2; // on a multiprocessor at least, as registers go

// Values of an axis that are stored: those before and behind a gap.
struct PlaneSpan {
    int head, gap, stored;
};

struct PlaneSide {
    PlaneSpan height, width;
    Quotient by_width; // stored values of a row
};

// A plane's rows are in shared memory `pitch` complex values apart. Of a real plane of 2 H or 2 H - 1 rows, row r and row H + r are
// the real and the imaginary part of complex row r. The transform of that has X[k] + i Y[k] at k and, conjugated, X[k] - i Y[k] at
// width - k: there X[k] and Y[k] of the two rows take their places. At k = 0, and in the middle of an even width, these are one
// place: Y[0] and Y[width / 2] are behind the row.
struct PlanePlan {
    FftDigits height, width;
    PlaneSide in, out;
    int64_t planes;
    int together; // planes of a block
    int rows, pitch; // of a plane in shared memory
    int cleared; // first row that is cleared before the values are read
    bool real, columns_first;
    Quotient by_rows; // of a block
    Quotient by_columns, by_plane_columns; // that are transformed: of a block, of a plane
    int threads, shared_bytes;
    int64_t blocks;
};

// Complex values in shared memory of a row whose transform takes `values` places. The distance is odd: neighbouring threads
// have neighbouring rows, and 16 of them read different banks.
TURBOFNO_HOST_DEVICE constexpr int plane_pitch(int values, int width, bool real) {
    return (values + (!real ? 0 : width % 2 == 0 ? 2 : 1)) | 1;
}

// Plans a transform, or returns the reason why the kernel does not support it.
const char *prepare(const turbofno_plane_transform &transform, PlanePlan &p);

} // namespace turbofno
