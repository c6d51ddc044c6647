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

turbofno_status ready(const turbofno_layer &layer) {
    if (turbofno_unsupported(&layer) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (layer.x == nullptr || layer.weight == nullptr || layer.y == nullptr || layer.workspace == nullptr ||
        layer.row_analysis == nullptr || layer.row_synthesis == nullptr) {
        return TURBOFNO_NULL_POINTER;
    }
    if (!is_1d(layer) && (layer.column_analysis == nullptr || layer.column_synthesis == nullptr)) {
        return TURBOFNO_NULL_POINTER;
    }
    return TURBOFNO_OK;
}

} // namespace turbofno

extern "C" const char *turbofno_last_cuda_error(void) { return cudaGetErrorString(turbofno::last_error); }
