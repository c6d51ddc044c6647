#include "launch.h"

namespace turbofno {
namespace {
thread_local cudaError_t last_error = cudaSuccess;
}

turbofno_status launched() {
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return TURBOFNO_OK;
    last_error = error;
    return TURBOFNO_LAUNCH_FAILED;
}

} // namespace turbofno

extern "C" int turbofno_abi(void) { return TURBOFNO_ABI; }

extern "C" const char *turbofno_last_cuda_error(void) { return cudaGetErrorString(turbofno::last_error); }
