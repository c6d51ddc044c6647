// Layout of the whole spectral product by clusters, and whether it is faster than separate launches. Host code only, but for
// the constants and the divider.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"
#include "limits.h"

namespace turbofno {

constexpr int kMaxDivided = 1 << 16;

// Division by a constant as a multiplication, for numbers below kMaxDivided.
struct Divider {
    int by;
    unsigned magic; // 2^32 / by, rounded up; 0 for 1

#ifdef __CUDACC__
    __device__ __forceinline__ int quotient(int n) const { return magic == 0 ? n : int(__umulhi(unsigned(n), magic)); }
#endif
};

// The whole spectral product by clusters. Index i of channels and of the other axis' modes belongs to block i % kCluster.
struct SpectralPlan {
    int64_t mode_groups; // clusters: pairs of modes of the last axis
    int mode_share; // the most modes of the other axis of a block
    Divider in_share, out_share; // the most input and output channels of a block
    Divider folds, out_folds; // numbers of pairs +-j of the axis; `folds` rounded up to whole eights
    Divider frequencies; // number of pairs +-k of its modes
    Divider groups; // of 16 output channels
    int threads;
    int c_pitch; // input channels from one mode to the next, rounded up to those whose weights lanes hold
    int in_pitch, out_pitch; // numbers of a table from one frequency to the next
    int in_table_bytes, out_table_bytes; // the latter 0 if both tables are the same
    // bytes in shared memory, after the mbarriers
    int in_table_at, out_table_at, folded_at, transformed_at, products_at, sums_at, shared_bytes;
};

constexpr int kCluster = 16; // blocks
constexpr int kMaxSpectralThreads = 512; // with 128 registers each

SpectralPlan plan(const turbofno_spectral &spectral);
Divider divider(int by);

} // namespace turbofno
