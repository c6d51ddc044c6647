// Block layout of the transforms of the axes before the last and of the product of modes. Host code only.
#pragma once

#include "../api/turbofno.h"
#include "ceil_div.h"

namespace turbofno {

// One transform: tiles of 16 frequencies or points (a tile has both signs), k-slabs of 8 terms.
struct TransformPlan {
    int tiles, steps;
    int warp_tiles; // tiles that a warp accumulates: 1, 2 or 3; 0 for dft_resident
    int groups; // blocks that share their columns
    int64_t blocks;
};

struct ProductPlan {
    int batch_fragments; // of 8 batch elements each, in a block: 1, 2 or 4
    int modes; // of the last axis, in a block: 1, 2 or 4
    int channel_tiles; // of 16 output channels each, in a block
    int weight_stages, weights_ahead; // in shared memory, of 8 input channels each; copied ahead of their use
    int64_t batch_tiles, mode_tiles, channel_groups, blocks;
    int threads;
    int shared_in, shared_out; // complex numbers from one batch element to the next in shared memory
    int shared_bytes;
};

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
constexpr int kMaxChannels = 256;
constexpr int kMaxSharedBytes = 96 * 1024; // opt-in limit per block that every device since sm_80 has
constexpr int kColumnWarps = 4; // of a block
constexpr int kWarpColumns = 16; // complex columns of a warp
constexpr int kMaxResidentSteps = 2; // k-slabs that dft_resident keeps in registers
constexpr int kMaxModeWarps = 8; // of a block
constexpr int kWeightsAhead = 2; // stages of a ring of weights in flight

TransformPlan plan(const turbofno_transform &transform);
ProductPlan plan(const turbofno_product &product);
SpectralPlan plan(const turbofno_spectral &spectral);
Divider divider(int by);

} // namespace turbofno
