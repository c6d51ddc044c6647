// turbofno::cuda_layer for CUDA tensors, through LibTorch's stable ABI. Schema, fake and checks stand in Python.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cuda_runtime.h>

#include <mutex>
#include <optional>
#include <vector>

#include "../api/turbofno.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

int multiprocessors(int device) {
    static std::mutex mutex;
    static std::vector<int> known;
    const std::lock_guard<std::mutex> lock(mutex);
    if (known.size() <= size_t(device)) known.resize(size_t(device) + 1, 0);
    if (known[size_t(device)] == 0) {
        const cudaError_t error =
            cudaDeviceGetAttribute(&known[size_t(device)], cudaDevAttrMultiProcessorCount, device);
        STD_TORCH_CHECK(error == cudaSuccess, "turbofno: ", cudaGetErrorString(error));
    }
    return known[size_t(device)];
}

void run(turbofno_status status, const char *stage) {
    STD_TORCH_CHECK(status == TURBOFNO_OK, "turbofno: ", stage, " failed (status ", int(status),
                    "); CUDA says: ", turbofno_last_cuda_error());
}

const float *input(const Tensor &tensor, const Tensor &x, const char *name, ScalarType dtype, int64_t numel) {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == x.get_device_index(), "turbofno: ", name,
                    " must be on the CUDA device of x");
    STD_TORCH_CHECK(tensor.scalar_type() == dtype, "turbofno: ", name, " has the wrong dtype");
    STD_TORCH_CHECK(tensor.is_contiguous() && tensor.numel() == numel, "turbofno: ", name, " must be contiguous with ",
                    numel, " elements, got ", tensor.numel());
    const void *data = tensor.const_data_ptr();
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0, "turbofno: ", name, " is not aligned to 16 bytes");
    return static_cast<const float *>(data);
}

Tensor cuda_layer(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &skip,
                  const std::optional<Tensor> &bias, const Tensor &row_analysis, const Tensor &row_synthesis,
                  const std::optional<Tensor> &column_analysis, const std::optional<Tensor> &column_synthesis,
                  int64_t activation, int64_t h_out, int64_t w_out) {
    STD_TORCH_CHECK(x.dim() == 4 && weight.dim() == 4, "turbofno: x and weight must have four axes");
    turbofno_layer layer{};
    layer.batch = x.size(0);
    layer.c_in = int32_t(x.size(1));
    layer.h_in = int32_t(x.size(2));
    layer.w_in = int32_t(x.size(3));
    layer.modes_h = int32_t(weight.size(0));
    layer.modes_w = int32_t(weight.size(1));
    layer.c_out = int32_t(weight.size(3));
    layer.h_out = int32_t(h_out);
    layer.w_out = int32_t(w_out);
    layer.activation = int32_t(activation);
    const int device = x.get_device_index();
    layer.multiprocessors = multiprocessors(device);
    const char *unsupported = turbofno_unsupported(&layer);
    STD_TORCH_CHECK(unsupported == nullptr, "turbofno: ", unsupported);
    STD_TORCH_CHECK(weight.size(2) == layer.c_in, "turbofno: weight does not fit x's channels");
    STD_TORCH_CHECK(!skip.has_value() || (h_out == layer.h_in && w_out == layer.w_in),
                    "turbofno: a skip needs one grid for input and output");

    const auto f32 = ScalarType::Float;
    layer.x = input(x, x, "x", f32, x.numel());
    layer.weight = input(weight, x, "weight", ScalarType::ComplexFloat, weight.numel());
    layer.row_analysis = input(row_analysis, x, "row_analysis", f32, 2LL * layer.w_in * layer.modes_w);
    layer.row_synthesis = input(row_synthesis, x, "row_synthesis", f32, 2LL * layer.w_out * layer.modes_w);
    if (skip.has_value()) layer.skip = input(*skip, x, "skip", f32, int64_t(layer.c_in) * layer.c_out);
    if (bias.has_value()) layer.bias = input(*bias, x, "bias", f32, layer.c_out);
    const int64_t sums = layer.modes_h / 2 + 1;
    if (column_analysis.has_value()) {
        layer.column_analysis = input(*column_analysis, x, "column_analysis", f32, 2 * sums * layer.h_in);
    }
    if (column_synthesis.has_value()) {
        layer.column_synthesis = input(*column_synthesis, x, "column_synthesis", f32, 2 * sums * layer.h_out);
    }

    const torch::stable::accelerator::DeviceGuard guard(device);
    void *stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    Tensor y = torch::stable::new_empty(x, {layer.batch, layer.c_out, h_out, w_out});
    const int64_t floats = int64_t(turbofno_workspace_bytes(&layer) / sizeof(float));
    Tensor workspace = torch::stable::new_empty(x, {floats});
    layer.y = static_cast<float *>(y.mutable_data_ptr());
    layer.workspace = workspace.mutable_data_ptr();

    auto *cuda_stream = static_cast<CUstream_st *>(stream);
    run(turbofno_analyze_rows(&layer, cuda_stream), "analyze_rows");
    run(turbofno_spectral_mix(&layer, cuda_stream), "spectral_mix");
    run(turbofno_fourier_rows(&layer, cuda_stream), "fourier_rows");
    return y;
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(turbofno, CUDA, m) { m.impl("cuda_layer", TORCH_BOX(&cuda_layer)); }
