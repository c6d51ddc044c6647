// Sums of what several blocks computed each a part of, always in the same order.
#pragma once

#include "launch.h"

namespace turbofno {

// to[i] = from[i] + from[count + i] + .. of `parts` parts, plus bias[i / plane % channels] unless bias is null.
turbofno_status add_parts(float *to, const float *from, int64_t count, int parts, const float *bias, int64_t plane,
                          int channels, cudaStream_t stream);

} // namespace turbofno
