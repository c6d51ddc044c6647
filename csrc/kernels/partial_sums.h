// Sums of partial results that several blocks computed.
#pragma once

#include "launch.h"

namespace turbofno {

// to[i] = sum over parts of from[part][i], i < count.
turbofno_status add_parts(float *to, const float *from, int64_t count, int parts, cudaStream_t stream);

} // namespace turbofno
