// Error check of every kernel launch.
#pragma once

#include <cuda_runtime.h>

#include "../api/turbofno.h"

namespace turbofno {

// Returns the status of the launch just made and keeps CUDA's error for turbofno_last_cuda_error.
turbofno_status launched();

} // namespace turbofno
