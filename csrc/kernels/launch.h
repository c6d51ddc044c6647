// What every kernel launch needs: shared memory beyond the default, and a check for errors.
#pragma once

#include <cuda_runtime.h>

#include "../api/turbofno.h"

namespace turbofno {

// Returns the status of the launch just made and keeps CUDA's error for turbofno_last_cuda_error.
turbofno_status launched();

// Lets launches of a kernel take so much dynamic shared memory. Ask for the device's maximum, not for what a launch needs: a
// smaller value could break a concurrent launch of the kernel by another thread.
template <typename Kernel> void allow_shared_memory(Kernel *kernel, int bytes) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

} // namespace turbofno
