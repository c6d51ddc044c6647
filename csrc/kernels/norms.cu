// Norms over the grid: moments per batch element and channel, and the scale and shift that they give.
//
// Spectra along the last axis give the moments by Parseval, without reading the field: a row of W points with coefficients
// c[0 .. K - 1] has the mean Re c[0] and the mean square (Re c[0])^2 + sum over k >= 1 of 2 |c[k]|^2, where the Nyquist
// frequency W / 2 of an even row counts (Re c[k])^2 only.
// Variances are sums of squares about a known mean, or merged from such sums (Chan et al. 1983), so that no digits cancel.
// Means are sums of differences from the first value: exact for a constant, whose rounding a norm would amplify by
// 1 / sqrt(eps). The mean of the differences from that mean is added to it, because the first value may be far from it.
#include "../plan/ceil_div.h"
#include "pdl.cuh"
#include "tile_fields.cuh"

namespace turbofno {
namespace {

constexpr int kThreads = 256;

// The sum of a value over the warp, returned to all lanes.
__device__ float warp_sum(float value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}

// The sum of a value over the block, returned to all threads.
__device__ float block_sum(float value, float *shared) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += shared[warp];
    return sum;
}

struct SpectralMoments {
    const float2 *spectra; // [batch][channels][outer][modes] or [batch][outer][modes][channels]
    float2 *moments;
    int64_t outer;
    int points, modes, channels, channel_groups;
};

// A block takes CHANNELS neighbouring channels of a batch element: one, or several where the channels are last.
template <int CHANNELS> __global__ void __launch_bounds__(kThreads) moments_of_spectra(const SpectralMoments a) {
    constexpr int kParts = kThreads / CHANNELS; // threads of a channel
    __shared__ float shared[CHANNELS == 1 ? kThreads / 32 : kThreads];
    pdl_wait();
    const int64_t count = a.outer * a.modes, b = blockIdx.x / a.channel_groups;
    const int part = threadIdx.x / CHANNELS;
    const int channel = int(blockIdx.x % a.channel_groups) * CHANNELS + int(threadIdx.x % CHANNELS);
    const bool exists = channel < a.channels;
    const int stride = CHANNELS == 1 ? 1 : a.channels; // from one mode to the next
    const float2 *from = a.spectra + b * count * a.channels + (exists ? channel : 0) * (CHANNELS == 1 ? count : 1);
    const auto sum_of_channel = [&](float value) { // returned to all of its threads
        if constexpr (CHANNELS == 1) {
            return block_sum(value, shared);
        } else {
            __syncthreads();
            shared[threadIdx.x] = value;
            __syncthreads();
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < kParts; ++p) sum += shared[p * CHANNELS + threadIdx.x % CHANNELS];
            return sum;
        }
    };
    const float first = from[0].x;
    float sum = 0.0f;
    for (int64_t o = part; o < a.outer; o += kParts) sum += from[o * a.modes * stride].x - first;
    const float mean = first + sum_of_channel(sum) / float(a.outer);
    float squares = 0.0f;
#pragma unroll 4
    for (int64_t i = part; i < count; i += kParts) {
        const int k = int(i % a.modes);
        const float2 c = from[i * stride];
        if (k == 0) {
            squares += (c.x - mean) * (c.x - mean);
        } else if (2 * k == a.points) {
            squares += c.x * c.x;
        } else {
            squares += 2.0f * (c.x * c.x + c.y * c.y);
        }
    }
    const float variance = sum_of_channel(squares) / float(a.outer);
    if (part == 0 && exists) a.moments[b * a.channels + channel] = {mean, variance};
    pdl_trigger();
}

constexpr int kPointsPerThread = 16; // held in registers, so that the field is read once

__device__ float4 sum_of(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

struct FieldMoments {
    const void *field; // [batch][points][channels, rounded up to 16 bytes]
    float2 *parts; // [batch][pieces][channels]: mean, sum of squares about it
    float2 *moments;
    int64_t points, piece, pieces; // points of a batch element, of a piece of these; pieces
    int64_t batch;
    int channels;
};

// A block takes one piece of a batch element's points; a thread four channels of every (kThreads / vectors)-th point.
template <typename Field> __global__ void __launch_bounds__(kThreads) moments_of_piece(const FieldMoments a) {
    __shared__ float4 shared[kThreads];
    pdl_wait();
    const int pitch = pitch_of<Field>(a.channels), vectors = pitch / 4, rows = kThreads / vectors;
    const int vector = threadIdx.x % vectors, row = threadIdx.x / vectors;
    const int64_t b = blockIdx.x / a.pieces; // one grid dimension: gridDim.y is limited to 65535
    const int64_t begin = blockIdx.x % a.pieces * a.piece;
    const int count = int(min(a.points - begin, a.piece));
    const Field *from = static_cast<const Field *>(a.field) + (b * a.points + begin) * pitch + 4 * vector;
    // Returned to all threads. In pairs: the rounding of a sum grows with the logarithm of the rows.
    const auto sum_of_rows = [&](float4 sum) {
        __syncthreads();
        shared[threadIdx.x] = sum;
        for (int half = kThreads / 2; half > 0; half /= 2) {
            __syncthreads();
            if (row < half && row + half < rows)
                shared[threadIdx.x] = sum_of(shared[threadIdx.x], shared[threadIdx.x + half * vectors]);
        }
        __syncthreads();
        return shared[vector];
    };
    const float4 first = load_four(from);
    float4 values[kPointsPerThread]; // less the first
#pragma unroll
    for (int i = 0; i < kPointsPerThread; ++i) {
        const int p = row + i * rows;
        values[i] = row < rows && p < count ? load_four(from + int64_t(p) * pitch) : first;
    }
    float4 sum{};
#pragma unroll
    for (float4 &v : values) {
        v = {v.x - first.x, v.y - first.y, v.z - first.z, v.w - first.w};
        sum = sum_of(sum, v);
    }
    const float part = 1.0f / float(count);
    const auto mean_of_rows = [&](float4 sum) {
        const float4 all = sum_of_rows(sum);
        return float4{all.x * part, all.y * part, all.z * part, all.w * part};
    };
    const float4 rough = mean_of_rows(sum); // less the first, with the rounding of sums as large as count times the first
    float4 rest{}, squares{};
#pragma unroll
    for (int i = 0; i < kPointsPerThread; ++i) {
        if (row >= rows || row + i * rows >= count) continue;
        const float4 v = values[i], d{v.x - rough.x, v.y - rough.y, v.z - rough.z, v.w - rough.w};
        rest = sum_of(rest, d);
        squares = {fmaf(d.x, d.x, squares.x), fmaf(d.y, d.y, squares.y), fmaf(d.z, d.z, squares.z),
                   fmaf(d.w, d.w, squares.w)};
    }
    const float4 mean = sum_of(sum_of(first, rough), mean_of_rows(rest));
    squares = sum_of_rows(squares);
    if (row == 0) {
        float2 *to = a.parts + int64_t(blockIdx.x) * a.channels + 4 * vector;
        const float means[4] = {mean.x, mean.y, mean.z, mean.w};
        const float sums[4] = {squares.x, squares.y, squares.z, squares.w};
        for (int i = 0; i < 4 && 4 * vector + i < a.channels; ++i) to[i] = {means[i], sums[i]};
    }
    pdl_trigger();
}

// A warp merges the pieces of one batch element and channel.
__global__ void __launch_bounds__(kThreads) merge_pieces(const FieldMoments a) {
    pdl_wait();
    const int64_t series = int64_t(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
    if (series < a.batch * a.channels) {
        const int64_t b = series / a.channels;
        const float2 *parts = a.parts + b * a.pieces * a.channels + (series - b * a.channels);
        const float count = float(a.points);
        const auto share = [&](int64_t i) { return float(min(a.piece, a.points - i * a.piece)) / count; };
        const float first = parts[0].x;
        float sum = 0.0f;
        for (int64_t i = threadIdx.x % 32; i < a.pieces; i += 32) sum += (parts[i * a.channels].x - first) * share(i);
        const float mean = first + warp_sum(sum);
        float variance = 0.0f;
        for (int64_t i = threadIdx.x % 32; i < a.pieces; i += 32) {
            const float2 part = parts[i * a.channels];
            const float delta = part.x - mean;
            variance += fmaf(delta * delta, share(i), part.y / count);
        }
        variance = warp_sum(variance);
        if (threadIdx.x % 32 == 0) a.moments[series] = {mean, variance};
    }
    pdl_trigger();
}

// One block per batch element, one thread per channel.
__global__ void __launch_bounds__(kThreads) affine_of_norm(const turbofno_norm a) {
    __shared__ float2 shared[kThreads]; // mean, variance
    pdl_wait();
    const int c = threadIdx.x, size = a.channels / a.groups;
    if (c < a.channels) {
        float2 m = reinterpret_cast<const float2 *>(a.moments)[int64_t(blockIdx.x) * a.channels + c];
        if (a.offset != nullptr) m.x += a.offset[c];
        shared[c] = m;
    }
    __syncthreads();
    if (c < a.width) {
        float scale = 0.0f, shift = 0.0f;
        if (c < a.channels) {
            const int first = c / size * size;
            float mean = 0.0f, variance = 0.0f;
            for (int i = 0; i < size; ++i) mean += shared[first + i].x;
            mean /= float(size);
            for (int i = 0; i < size; ++i) {
                const float delta = shared[first + i].x - mean;
                variance += shared[first + i].y + delta * delta;
            }
            scale = rsqrtf(variance / float(size) + a.eps);
            if (a.weight != nullptr) scale *= a.weight[c];
            const float offset = a.offset != nullptr ? a.offset[c] : 0.0f;
            shift = (a.bias != nullptr ? a.bias[c] : 0.0f) + (offset - mean) * scale;
        }
        a.scale[int64_t(blockIdx.x) * a.width + c] = scale;
        a.shift[int64_t(blockIdx.x) * a.width + c] = shift;
    }
    pdl_trigger();
}

FieldMoments field_moments_arguments(const turbofno_moments &m) {
    FieldMoments a{};
    const int pitch = m.precision == TURBOFNO_BF16 ? pitch_of<__nv_bfloat16>(m.channels) : pitch_of<float>(m.channels);
    a.points = m.outer * m.points;
    a.piece = kPointsPerThread * (kThreads / (pitch / 4));
    a.pieces = ceil_div(a.points, a.piece);
    a.batch = m.batch;
    a.channels = m.channels;
    return a;
}

} // namespace
} // namespace turbofno

extern "C" size_t turbofno_moments_workspace_bytes(const turbofno_moments *m) {
    return size_t(m->batch) * size_t(turbofno::field_moments_arguments(*m).pieces) * size_t(m->channels) * sizeof(float2);
}

extern "C" turbofno_status turbofno_spectral_moments(const turbofno_moments *m, CUstream_st *stream) {
    using namespace turbofno;
    if (m->spectra == nullptr || m->moments == nullptr) return TURBOFNO_NULL_POINTER;
    constexpr int kTogether = 8; // channels of a block, two sectors of 32 bytes
    const int groups = m->channels_last ? ceil_div(m->channels, kTogether) : m->channels;
    const SpectralMoments a{reinterpret_cast<const float2 *>(m->spectra), reinterpret_cast<float2 *>(m->moments), m->outer,
                            m->points, m->modes, m->channels, groups};
    const auto kernel = m->channels_last ? moments_of_spectra<kTogether> : moments_of_spectra<1>;
    return launch_pdl(kernel, dim3(unsigned(m->batch * groups)), kThreads, 0, stream, a);
}

extern "C" turbofno_status turbofno_field_moments(const turbofno_moments *m, CUstream_st *stream) {
    using namespace turbofno;
    if (m->field == nullptr || m->moments == nullptr || m->workspace == nullptr) return TURBOFNO_NULL_POINTER;
    if (m->channels < 1 || m->channels > kThreads) return TURBOFNO_UNSUPPORTED;
    FieldMoments a = field_moments_arguments(*m);
    a.field = m->field;
    a.parts = static_cast<float2 *>(m->workspace);
    a.moments = reinterpret_cast<float2 *>(m->moments);
    const auto kernel = m->precision == TURBOFNO_BF16 ? moments_of_piece<__nv_bfloat16> : moments_of_piece<float>;
    const dim3 blocks(unsigned(m->batch * a.pieces));
    const turbofno_status status = launch_pdl(kernel, blocks, kThreads, 0, stream, a);
    if (status != TURBOFNO_OK) return status;
    const int64_t warps = m->batch * m->channels;
    return launch_pdl(merge_pieces, dim3(unsigned(ceil_div(warps, int64_t(kThreads / 32)))), kThreads, 0, stream, a);
}

extern "C" turbofno_status turbofno_norm_affine(const turbofno_norm *norm, CUstream_st *stream) {
    using namespace turbofno;
    if (norm->moments == nullptr || norm->scale == nullptr || norm->shift == nullptr) return TURBOFNO_NULL_POINTER;
    if (norm->width > kThreads || norm->channels % norm->groups != 0) return TURBOFNO_UNSUPPORTED;
    return launch_pdl(affine_of_norm, dim3(unsigned(norm->batch)), kThreads, 0, stream, *norm);
}
