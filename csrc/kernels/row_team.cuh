// What the parts of fourier_rows share: its arguments, what a warp of it has, and where it is.
#pragma once

#include "../plan/rows_plan.h"
#include "launch.h"

namespace turbofno {

struct RowsArguments {
    const void *x;
    const float *skip, *bias, *spectra;
    const uint4 *table, *next_table;
    void *y;
    float *next_sums; // next spectra, or [splits] of them
    const float *projection, *projection_bias;
    float *out; // of the projection, or [channel tiles] of parts
    int rows; // batch * h
    int c_in, c_out, h, w, columns, next_columns, projected, activation;
    float next_back;
    RowsPlan plan;
};

// What a warp is and has in shared memory.
struct Team {
    int threads, thread; // of the group, in the group
    int member; // warp of the group
    int group, first_channel;
    const uint4 *skip;
    uint4 *tile, *spectra;
    float4 *sums;
    unsigned *maxima;

    __device__ void wait() const {
        if (threads == 32) {
            __syncwarp(); // there may be more groups than barriers
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
        }
    }
};

// Split of row (b, h), and chunk.
struct Place {
    int b, h, split, chunk;
};

// The groups beyond the last row repeat it: they write what is written anyway.
__device__ __forceinline__ Place place(const RowsArguments &a, int unit, int group) {
    const int set = a.plan.splits == 1 ? unit : unit / a.plan.splits;
    const int split = unit - set * a.plan.splits;
    const int row = min(set * a.plan.groups + group, a.rows - 1);
    const int b = a.h == 1 ? row : row / a.h;
    return {b, row - b * a.h, split, split * a.plan.split_chunks};
}

__device__ __forceinline__ int64_t row_of(const Place &at, int channels, int channel, int h) {
    return (int64_t(at.b) * channels + channel) * h + at.h;
}

} // namespace turbofno
