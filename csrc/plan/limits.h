// Shapes that the kernels of a Fourier layer serve, one bound for all of them.
#pragma once

#include "../api/turbofno.h"

namespace turbofno {

constexpr int kMaxChannels = 256;
constexpr int kMaxModes = 128; // of an axis
constexpr int kMaxPoints = 16384; // of an axis
constexpr int64_t kMaxBatch = 65536;
constexpr int kMaxSharedBytes = 96 * 1024; // opt-in limit per block that every device since sm_80 has

constexpr bool known_precision(int precision) { return precision >= TURBOFNO_FP32 && precision <= TURBOFNO_BF16; }

} // namespace turbofno
