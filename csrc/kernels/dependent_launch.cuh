// Programmatic dependent launch: a kernel may start while the one before it in the stream still runs (sm_90 and later;
// an ordinary launch elsewhere). Each of its threads calls wait_for_previous before it reads or writes what another
// kernel does.
#pragma once

#include "architecture.h"
#include "launch.h"

namespace turbofno {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once all blocks have come here the next kernel's may start. Not before the end is near: they would crowd on the few
// multiprocessors that this kernel leaves free.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Not by the card: older code on it does not wait.
inline bool overlaps_launches() { return code_architecture() >= 90; }

template <typename Arguments>
turbofno_status launch_dependent(void (*kernel)(Arguments), dim3 blocks, int threads, size_t shared_bytes,
                                 cudaStream_t stream, const Arguments &arguments) {
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = overlaps_launches() ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, arguments);
    return launched();
}

} // namespace turbofno
