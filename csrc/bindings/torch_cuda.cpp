// The stages as ops for CUDA tensors, through LibTorch's stable ABI. Schemas stand in Python (_stage_ops.py).
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
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

// One call of a stage: the device of its first argument, that device's current stream, checked pointers.
class Call {
  public:
    Call(const char *stage, const Tensor &on) : stage_(stage), device_(on.get_device_index()), guard_(device_) {
        void *stream = nullptr;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_, &stream));
        stream_ = static_cast<CUstream_st *>(stream);
    }

    int32_t processors() const { return multiprocessors(device_); }

    void serves(const char *unsupported) const {
        STD_TORCH_CHECK(unsupported == nullptr, "turbofno: ", stage_, ": ", unsupported);
    }

    void fits(bool holds, const char *what) const { STD_TORCH_CHECK(holds, "turbofno: ", stage_, ": ", what); }

    const void *bytes(const Tensor &tensor, const char *name) const {
        STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device_, "turbofno: ", stage_, ": ", name,
                        " is not on the device of the first argument");
        STD_TORCH_CHECK(tensor.is_contiguous(), "turbofno: ", stage_, ": ", name, " is not contiguous");
        const void *data = tensor.const_data_ptr();
        STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0, "turbofno: ", stage_, ": ", name,
                        " is not aligned to 16 bytes");
        return data;
    }

    const void *bytes(const std::optional<Tensor> &tensor, const char *name) const {
        return tensor.has_value() ? bytes(*tensor, name) : nullptr;
    }

    const float *floats(const Tensor &tensor, const char *name, ScalarType dtype, int64_t numel) const {
        typed(tensor, name, dtype, numel);
        return static_cast<const float *>(bytes(tensor, name));
    }

    const float *floats(const std::optional<Tensor> &tensor, const char *name, int64_t numel) const {
        return tensor.has_value() ? floats(*tensor, name, ScalarType::Float, numel) : nullptr;
    }

    const void *field(const Tensor &tensor, const char *name, int32_t precision, int64_t numel) const {
        typed(tensor, name, field_type(precision), numel);
        return bytes(tensor, name);
    }

    // What a stage writes: the caller's tensor.
    void *result(const Tensor &tensor, const char *name, ScalarType dtype, int64_t numel) const {
        typed(tensor, name, dtype, numel);
        return const_cast<void *>(bytes(tensor, name));
    }

    float *spectra(const Tensor &tensor, const char *name, int64_t numel) const {
        return static_cast<float *>(result(tensor, name, ScalarType::ComplexFloat, numel));
    }

    void *workspace(const Tensor &tensor, size_t count) const {
        STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Byte && size_t(tensor.numel()) >= count, "turbofno: ",
                        stage_, ": the workspace must have ", count, " bytes");
        return const_cast<void *>(bytes(tensor, "workspace"));
    }

    static ScalarType field_type(int32_t precision) {
        return precision == TURBOFNO_BF16 ? ScalarType::BFloat16 : ScalarType::Float;
    }

    template <typename Stage> void run(turbofno_status (*launch)(const Stage *, CUstream_st *), const Stage &stage) const {
        const turbofno_status status = launch(&stage, stream_);
        STD_TORCH_CHECK(status == TURBOFNO_OK, "turbofno: ", stage_, " failed (status ", int(status),
                        "); CUDA says: ", turbofno_last_cuda_error());
    }

  private:
    void typed(const Tensor &tensor, const char *name, ScalarType dtype, int64_t numel) const {
        STD_TORCH_CHECK(tensor.scalar_type() == dtype, "turbofno: ", stage_, ": ", name, " has the wrong dtype");
        STD_TORCH_CHECK(tensor.numel() == numel, "turbofno: ", stage_, ": ", name, " must have ", numel,
                        " elements, got ", tensor.numel());
    }

    const char *stage_;
    int device_;
    torch::stable::accelerator::DeviceGuard guard_;
    CUstream_st *stream_ = nullptr;
};

void analyze_rows(const Tensor &x, const Tensor &table, int64_t modes, int64_t precision, const Tensor &spectra,
                  const Tensor &workspace) {
    const Call call("analyze_rows", x);
    call.fits(x.dim() == 4, "x must be [batch, channels, h, w]");
    turbofno_analysis analysis{};
    analysis.rows = x.size(0) * x.size(1) * x.size(2);
    analysis.points = int32_t(x.size(3));
    analysis.modes = int32_t(modes);
    analysis.precision = int32_t(precision);
    analysis.multiprocessors = call.processors();
    call.serves(turbofno_analysis_unsupported(&analysis));
    analysis.x = call.field(x, "x", analysis.precision, x.numel());
    analysis.table = call.bytes(table, "table");
    analysis.spectra = call.spectra(spectra, "spectra", analysis.rows * modes);
    analysis.workspace = call.workspace(workspace, turbofno_analysis_workspace_bytes(&analysis));
    call.run(turbofno_analyze_rows, analysis);
}

void spectral_mix(const Tensor &spectra, const Tensor &weight, const std::optional<Tensor> &column_analysis,
                  const std::optional<Tensor> &column_synthesis, int64_t precision, const Tensor &mixed,
                  const Tensor &workspace) {
    const Call call("spectral_mix", spectra);
    call.fits(spectra.dim() == 4 && weight.dim() == 4 && mixed.dim() == 4,
              "spectra, weight and mixed must have four axes");
    call.fits(weight.size(1) == spectra.size(3) && weight.size(2) == spectra.size(1), "weight does not fit spectra");
    turbofno_mix mix{};
    mix.batch = spectra.size(0);
    mix.c_in = int32_t(weight.size(2));
    mix.c_out = int32_t(weight.size(3));
    mix.h_in = int32_t(spectra.size(2));
    mix.h_out = int32_t(mixed.size(2));
    mix.modes_h = int32_t(weight.size(0));
    mix.modes_w = int32_t(weight.size(1));
    mix.precision = int32_t(precision);
    mix.multiprocessors = call.processors();
    call.serves(turbofno_mix_unsupported(&mix));
    mix.spectra = call.floats(spectra, "spectra", ScalarType::ComplexFloat, spectra.numel());
    mix.weight = call.floats(weight, "weight", ScalarType::ComplexFloat, weight.numel());
    mix.column_analysis = call.bytes(column_analysis, "column_analysis");
    mix.column_synthesis = call.bytes(column_synthesis, "column_synthesis");
    mix.mixed = call.spectra(mixed, "mixed", mix.batch * mix.c_out * mix.h_out * mix.modes_w);
    mix.workspace = call.workspace(workspace, turbofno_mix_workspace_bytes(&mix));
    call.run(turbofno_spectral_mix, mix);
}

// What fourier_rows and project_rows share: the spectra's synthesis, skip, bias and activation, on rows of w points.
turbofno_rows synthesis(const Call &call, const Tensor &spectra, const Tensor &table, const std::optional<Tensor> &x,
                        const std::optional<Tensor> &skip, const std::optional<Tensor> &bias, int64_t activation,
                        int64_t precision, int64_t w) {
    call.fits(spectra.dim() == 4, "spectra must be [batch, channels, h, modes]");
    call.fits(x.has_value() == skip.has_value(), "x and skip go together");
    turbofno_rows rows{};
    rows.batch = spectra.size(0);
    rows.c_out = int32_t(spectra.size(1));
    rows.h = int32_t(spectra.size(2));
    rows.w = int32_t(w);
    rows.modes = int32_t(spectra.size(3));
    rows.activation = int32_t(activation);
    rows.precision = int32_t(precision);
    rows.multiprocessors = call.processors();
    rows.spectra = call.floats(spectra, "spectra", ScalarType::ComplexFloat, spectra.numel());
    rows.table = call.bytes(table, "table");
    if (x.has_value()) {
        call.fits(x->dim() == 4, "x must be [batch, channels, h, w]");
        rows.c_in = int32_t(x->size(1));
        rows.x = call.field(*x, "x", rows.precision, rows.batch * rows.c_in * rows.h * w);
    }
    rows.skip = call.floats(skip, "skip", int64_t(rows.c_out) * rows.c_in);
    rows.bias = call.floats(bias, "bias", rows.c_out);
    return rows;
}

void fourier_rows(const Tensor &spectra, const Tensor &table, const std::optional<Tensor> &x,
                  const std::optional<Tensor> &skip, const std::optional<Tensor> &bias,
                  const std::optional<Tensor> &next_table, int64_t activation, int64_t precision, const Tensor &y,
                  const std::optional<Tensor> &next_spectra, const Tensor &workspace) {
    const Call call("fourier_rows", spectra);
    call.fits(y.dim() == 4, "y must be [batch, channels, h, w]");
    turbofno_rows rows = synthesis(call, spectra, table, x, skip, bias, activation, precision, y.size(3));
    call.fits(next_table.has_value() == next_spectra.has_value(), "next_table and next_spectra go together");
    const int64_t outputs = rows.batch * rows.c_out * rows.h;
    if (next_spectra.has_value()) {
        call.fits(next_spectra->dim() == 4, "next_spectra must be [batch, channels, h, modes]");
        rows.next_modes = int32_t(next_spectra->size(3));
        rows.next_table = call.bytes(next_table, "next_table");
        rows.next_spectra = call.spectra(*next_spectra, "next_spectra", outputs * rows.next_modes);
    }
    call.serves(turbofno_rows_unsupported(&rows));
    rows.y = call.result(y, "y", Call::field_type(rows.precision), outputs * rows.w);
    rows.workspace = call.workspace(workspace, turbofno_rows_workspace_bytes(&rows));
    call.run(turbofno_fourier_rows, rows);
}

void project_rows(const Tensor &spectra, const Tensor &table, const std::optional<Tensor> &x,
                  const std::optional<Tensor> &skip, const std::optional<Tensor> &bias, const Tensor &projection,
                  const std::optional<Tensor> &projection_bias, int64_t activation, int64_t precision,
                  const Tensor &out, const Tensor &workspace) {
    const Call call("project_rows", spectra);
    call.fits(projection.dim() == 2, "projection must be [projected, channels]");
    call.fits(out.dim() == 4, "out must be [batch, projected, h, w]");
    turbofno_rows rows = synthesis(call, spectra, table, x, skip, bias, activation, precision, out.size(3));
    rows.projected = int32_t(projection.size(0));
    call.serves(turbofno_rows_unsupported(&rows));
    rows.projection =
        call.floats(projection, "projection", ScalarType::Float, int64_t(rows.projected) * rows.c_out);
    rows.projection_bias = call.floats(projection_bias, "projection_bias", rows.projected);
    const int64_t outputs = rows.batch * rows.projected * rows.h * rows.w;
    rows.out = static_cast<float *>(call.result(out, "out", ScalarType::Float, outputs));
    rows.workspace = call.workspace(workspace, turbofno_rows_workspace_bytes(&rows));
    call.run(turbofno_fourier_rows, rows);
}

} // namespace

STABLE_TORCH_LIBRARY_IMPL(turbofno, CUDA, m) {
    m.impl("analyze_rows", TORCH_BOX(&analyze_rows));
    m.impl("spectral_mix", TORCH_BOX(&spectral_mix));
    m.impl("fourier_rows", TORCH_BOX(&fourier_rows));
    m.impl("project_rows", TORCH_BOX(&project_rows));
}
