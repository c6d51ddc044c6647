// What the kernels' host sides share: checking every launch.
#pragma once

#include <cuda_runtime.h>

#include "../api/turbofno.h"

namespace turbofno {

// Status of the launch just made; remembers CUDA's words for turbofno_last_cuda_error.
turbofno_status launched();

} // namespace turbofno
