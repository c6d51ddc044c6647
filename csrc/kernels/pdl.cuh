// Programmatic dependent launch (PDL): a kernel may start while the previous one in the stream still runs. From sm_90 on;
// an ordinary launch elsewhere. Every thread calls pdl_wait before it touches memory that an earlier kernel may still use.
#pragma once

#include "architecture.h"
#include "launch.h"

namespace turbofno {

__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start once all blocks have called this. Call it near the end: earlier, the next kernel's blocks would crowd
// onto the few multiprocessors that a large grid leaves free.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The same, at once, in a grid that leaves room on the multiprocessors: the next kernel copies its weights and tables meanwhile. Call
// it after pdl_wait, so that the kernel after the next one does not start, too.
__device__ __forceinline__ void pdl_trigger_of_small_grid() {
    constexpr unsigned kSmall = 32768; // threads: 256 a multiprocessor
    if (gridDim.x * gridDim.y * blockDim.x <= kSmall) pdl_trigger();
}

// Depends on the code, not on the device: code compiled for sm_80 contains no wait.
inline bool pdl_supported() { return compiled_architecture() >= 90; }

template <typename Arguments>
turbofno_status launch_pdl(void (*kernel)(Arguments), dim3 blocks, int threads, size_t shared_bytes,
                                 cudaStream_t stream, const Arguments &arguments, int cluster = 1) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {unsigned(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = !pdl_supported() ? 0 : cluster == 1 ? 1 : 2;
    cudaLaunchKernelEx(&config, kernel, arguments);
    return launched();
}

} // namespace turbofno
