// DFT along h to the kept modes, one complex product of the channels a mode, inverse DFT along h.
//
// A frequency k and its negative share their sums over cosines and sines, C and S: C - iS is the coefficient
// of k and C + iS that of -k. So the transforms run over |k| = 0 .. modes_h / 2 and cost half. Kept mode i of
// modes_h stands for k = i below (modes_h + 1) / 2 and for k = i - modes_h from there on.
//
// Three kernels, with the kept modes (a small part of the field) passing through memory between them: so
// that any number of channels and modes fits, and each mode's weights are read once for many batch elements.
// 1D has only the product in the middle.
#include "async_copy.cuh"
#include "launch.h"

namespace turbofno {
namespace {

constexpr int kRowsAtOnce = 32; // of h, in shared memory
constexpr int CH = kChannelsAtOnce;
constexpr int kSynthesisRows = 4; // of h, per thread

struct Columns {
    const float2 *table, *in;
    float2 *out;
    int64_t batch;
    int channels, h, modes_h, modes_w;
    int ky, k_slots, ky_tiles, k_tiles, channel_tiles;
};

// Mode index of +k and of -k, or -1 where that one is not kept.
__device__ int positive(int k, int modes_h) { return k < (modes_h + 1) / 2 ? k : -1; }
__device__ int negative(int k, int modes_h) { return k >= 1 && k <= modes_h / 2 ? modes_h - k : -1; }

struct Place {
    int64_t b;
    int channel0, ky0, tile;
};

__device__ Place place(const Columns &a, int last_tiles) {
    Place p;
    int64_t block = blockIdx.x;
    p.tile = int(block % last_tiles);
    block /= last_tiles;
    p.ky0 = int(block % a.ky_tiles) * a.ky;
    block /= a.ky_tiles;
    p.channel0 = int(block % a.channel_tiles) * CH;
    p.b = block / a.channel_tiles;
    return p;
}

// [batch][channel][h][ky] -> [kx][ky][batch][channel]. Thread: one ky, two |k|, four channels.
__global__ void __launch_bounds__(128) analyze_columns(const Columns a) {
    extern __shared__ __align__(16) float2 shared[];
    float2 *rows = shared; // [CH][kRowsAtOnce][ky]
    float2 *table = shared + CH * kRowsAtOnce * a.ky; // [2 * k_slots][kRowsAtOnce]
    const int sums = a.modes_h / 2 + 1;
    const Place p = place(a, a.k_tiles);
    const int k0 = p.tile * 2 * a.k_slots;
    const int ky = threadIdx.x % a.ky, slot = threadIdx.x / a.ky;

    float2 cosine[2][CH] = {}, sine[2][CH] = {};
    for (int h0 = 0; h0 < a.h; h0 += kRowsAtOnce) {
        for (int e = threadIdx.x; e < CH * kRowsAtOnce * a.ky; e += blockDim.x) {
            const int y = p.ky0 + e % a.ky;
            const int h = h0 + e / a.ky % kRowsAtOnce;
            const int channel = p.channel0 + e / a.ky / kRowsAtOnce;
            const bool inside = y < a.modes_w && h < a.h && channel < a.channels;
            const float2 *from = a.in + ((p.b * a.channels + channel) * a.h + h) * a.modes_w + y;
            copy_async<8>(rows + e, inside ? from : a.in, inside);
        }
        for (int e = threadIdx.x; e < 2 * a.k_slots * kRowsAtOnce; e += blockDim.x) {
            const int h = h0 + e % kRowsAtOnce, k = k0 + e / kRowsAtOnce;
            const bool inside = h < a.h && k < sums;
            copy_async<8>(table + e, inside ? a.table + int64_t(k) * a.h + h : a.table, inside);
        }
        commit_copies();
        wait_copies<0>();
        __syncthreads();
#pragma unroll 4
        for (int h = 0; h < kRowsAtOnce; ++h) {
            float2 r[CH];
#pragma unroll
            for (int c = 0; c < CH; ++c) r[c] = rows[(c * kRowsAtOnce + h) * a.ky + ky];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 t = table[(2 * slot + i) * kRowsAtOnce + h];
#pragma unroll
                for (int c = 0; c < CH; ++c) {
                    cosine[i][c].x = fmaf(t.x, r[c].x, cosine[i][c].x);
                    cosine[i][c].y = fmaf(t.x, r[c].y, cosine[i][c].y);
                    sine[i][c].x = fmaf(t.y, r[c].x, sine[i][c].x);
                    sine[i][c].y = fmaf(t.y, r[c].y, sine[i][c].y);
                }
            }
        }
        __syncthreads();
    }

    const int y = p.ky0 + ky;
    if (y >= a.modes_w) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int k = k0 + 2 * slot + i;
        if (k >= sums) continue;
        const int up = positive(k, a.modes_h), down = negative(k, a.modes_h);
#pragma unroll
        for (int c = 0; c < CH; ++c) {
            const int channel = p.channel0 + c;
            if (channel >= a.channels) continue;
            const float2 cs = cosine[i][c], sn = sine[i][c];
            const auto put = [&](int kx, float2 z) {
                a.out[((int64_t(kx) * a.modes_w + y) * a.batch + p.b) * a.channels + channel] = z;
            };
            if (up >= 0) put(up, float2{cs.x + sn.y, cs.y - sn.x});
            if (down >= 0) put(down, float2{cs.x - sn.y, cs.y + sn.x});
        }
    }
}

// [kx][ky][batch][channel] -> [batch][channel][h][ky]. Thread: one ky, four h at a time, four channels.
__global__ void __launch_bounds__(128) synthesize_columns(const Columns a) {
    extern __shared__ __align__(16) float4 parts[]; // [|k|][CH][ky]: what cos and sin of |k| are multiplied by
    const int sums = a.modes_h / 2 + 1;
    const Place p = place(a, 1);
    for (int e = threadIdx.x; e < sums * CH * a.ky; e += blockDim.x) {
        // channels fastest, as they lie in memory
        const int c = e % CH, y = e / CH % a.ky, k = e / CH / a.ky;
        const int channel = p.channel0 + c;
        const auto get = [&](int kx) {
            const bool inside = kx >= 0 && channel < a.channels && p.ky0 + y < a.modes_w;
            return inside ? a.in[((int64_t(kx) * a.modes_w + p.ky0 + y) * a.batch + p.b) * a.channels + channel]
                          : float2{};
        };
        const float2 up = get(positive(k, a.modes_h)), down = get(negative(k, a.modes_h));
        parts[(k * CH + c) * a.ky + y] = float4{up.x + down.x, up.y + down.y, down.y - up.y, up.x - down.x};
    }
    __syncthreads();

    const int ky = threadIdx.x % a.ky, slot = threadIdx.x / a.ky;
    if (p.ky0 + ky >= a.modes_w) return;
    for (int h0 = slot; h0 < a.h; h0 += kSynthesisRows * a.k_slots) {
        float2 sum[kSynthesisRows][CH] = {};
        for (int k = 0; k < sums; ++k) {
            float2 t[kSynthesisRows];
#pragma unroll
            for (int i = 0; i < kSynthesisRows; ++i) {
                const int h = min(h0 + i * a.k_slots, a.h - 1);
                t[i] = __ldg(a.table + int64_t(k) * a.h + h);
            }
#pragma unroll
            for (int c = 0; c < CH; ++c) {
                const float4 part = parts[(k * CH + c) * a.ky + ky];
#pragma unroll
                for (int i = 0; i < kSynthesisRows; ++i) {
                    sum[i][c].x = fmaf(t[i].x, part.x, fmaf(t[i].y, part.z, sum[i][c].x));
                    sum[i][c].y = fmaf(t[i].x, part.y, fmaf(t[i].y, part.w, sum[i][c].y));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kSynthesisRows; ++i) {
            const int h = h0 + i * a.k_slots;
#pragma unroll
            for (int c = 0; c < CH; ++c) {
                const int channel = p.channel0 + c;
                if (h < a.h && channel < a.channels) {
                    a.out[((p.b * a.channels + channel) * a.h + h) * a.modes_w + p.ky0 + ky] = sum[i][c];
                }
            }
        }
    }
}

struct Product {
    const float2 *in, *weight;
    float2 *out;
    int64_t batch;
    int c_in, c_out, modes, groups;
    int64_t mode_stride, batch_stride, channel_stride; // of `out`, in complex numbers
};

// One mode, BATCH * groups batch elements. Thread: PAIR output channels, BATCH batch elements.
template <int BATCH, int PAIR> __global__ void __launch_bounds__(256) multiply_modes(const Product a) {
    extern __shared__ __align__(16) float2 fields[]; // [batch tile][c_in]
    const int tile = BATCH * a.groups;
    const int mode = int(blockIdx.x % a.modes);
    const int64_t b0 = int64_t(blockIdx.x / a.modes) * tile;
    const float2 *in = a.in + (mode * a.batch + b0) * a.c_in;
    const int64_t count = min(int64_t(tile), a.batch - b0) * a.c_in;
    for (int e = threadIdx.x; e < tile * a.c_in; e += blockDim.x) {
        copy_async<8>(fields + e, e < count ? in + e : in, e < count);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    const int lanes = a.c_out / PAIR;
    const int o = threadIdx.x % lanes * PAIR, group = threadIdx.x / lanes;
    const float2 *weight = a.weight + int64_t(mode) * a.c_in * a.c_out + o;
    const float2 *z = fields + group * BATCH * a.c_in;
    float2 sum[BATCH][PAIR] = {};
#pragma unroll 8
    for (int c = 0; c < a.c_in; ++c) {
        float2 w[PAIR];
        if constexpr (PAIR == 2) {
            const float4 both = __ldg(reinterpret_cast<const float4 *>(weight + int64_t(c) * a.c_out));
            w[0] = float2{both.x, both.y};
            w[1] = float2{both.z, both.w};
        } else {
            w[0] = __ldg(weight + int64_t(c) * a.c_out);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const float2 v = z[i * a.c_in + c];
#pragma unroll
            for (int j = 0; j < PAIR; ++j) {
                sum[i][j].x = fmaf(v.x, w[j].x, fmaf(-v.y, w[j].y, sum[i][j].x));
                sum[i][j].y = fmaf(v.x, w[j].y, fmaf(v.y, w[j].x, sum[i][j].y));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        const int64_t b = b0 + group * BATCH + i;
        if (b >= a.batch) break;
#pragma unroll
        for (int j = 0; j < PAIR; ++j) {
            a.out[mode * a.mode_stride + b * a.batch_stride + (o + j) * a.channel_stride] = sum[i][j];
        }
    }
}

turbofno_status launch_product(const turbofno_layer &layer, const Plan &p, cudaStream_t stream) {
    Product a{};
    a.in = reinterpret_cast<const float2 *>(at(layer, p.modes));
    a.weight = reinterpret_cast<const float2 *>(layer.weight);
    a.batch = layer.batch;
    a.c_in = layer.c_in;
    a.c_out = layer.c_out;
    a.modes = layer.modes_h * layer.modes_w;
    a.groups = p.mix_groups;
    if (is_1d(layer)) { // straight to what fourier_rows reads
        a.out = reinterpret_cast<float2 *>(at(layer, p.rows));
        a.mode_stride = 1;
        a.batch_stride = int64_t(a.c_out) * a.modes;
        a.channel_stride = a.modes;
    } else {
        a.out = reinterpret_cast<float2 *>(at(layer, p.mixed));
        a.mode_stride = a.batch * a.c_out;
        a.batch_stride = a.c_out;
        a.channel_stride = 1;
    }
    const int64_t tile = int64_t(p.mix_batch) * p.mix_groups;
    const unsigned blocks = unsigned(a.modes * ceil_div(layer.batch, tile));
    const unsigned threads = unsigned(a.c_out / p.mix_pair * p.mix_groups);
    const size_t shared = sizeof(float2) * tile * layer.c_in;
    const bool pair = p.mix_pair == 2;
    const auto run = [&](auto kernel) { kernel<<<blocks, threads, shared, stream>>>(a); };
    switch (p.mix_batch) {
    case 1: run(pair ? multiply_modes<1, 2> : multiply_modes<1, 1>); break;
    case 4: run(pair ? multiply_modes<4, 2> : multiply_modes<4, 1>); break;
    default: run(pair ? multiply_modes<8, 2> : multiply_modes<8, 1>); break;
    }
    return launched();
}

turbofno_status launch_analysis(const turbofno_layer &layer, const Plan &p, cudaStream_t stream) {
    Columns a{};
    a.table = reinterpret_cast<const float2 *>(layer.column_analysis);
    a.in = reinterpret_cast<const float2 *>(at(layer, p.rows));
    a.out = reinterpret_cast<float2 *>(at(layer, p.modes));
    a.batch = layer.batch;
    a.channels = layer.c_in;
    a.h = layer.h_in;
    a.modes_h = layer.modes_h;
    a.modes_w = layer.modes_w;
    a.ky = p.analysis_ky;
    a.k_slots = p.analysis_pairs;
    a.ky_tiles = ceil_div(a.modes_w, a.ky);
    a.k_tiles = ceil_div(a.modes_h / 2 + 1, 2 * a.k_slots);
    a.channel_tiles = ceil_div(a.channels, CH);
    const int64_t blocks = a.batch * a.channel_tiles * a.ky_tiles * a.k_tiles;
    const size_t shared = sizeof(float2) * kRowsAtOnce * (CH * a.ky + 2 * a.k_slots);
    analyze_columns<<<unsigned(blocks), unsigned(a.ky * a.k_slots), shared, stream>>>(a);
    return launched();
}

turbofno_status launch_synthesis(const turbofno_layer &layer, const Plan &p, cudaStream_t stream) {
    Columns a{};
    a.table = reinterpret_cast<const float2 *>(layer.column_synthesis);
    a.in = reinterpret_cast<const float2 *>(at(layer, p.mixed));
    a.out = reinterpret_cast<float2 *>(at(layer, p.rows));
    a.batch = layer.batch;
    a.channels = layer.c_out;
    a.h = layer.h_out;
    a.modes_h = layer.modes_h;
    a.modes_w = layer.modes_w;
    a.ky = p.synthesis_ky;
    a.k_slots = p.synthesis_slots;
    a.ky_tiles = ceil_div(a.modes_w, a.ky);
    a.channel_tiles = ceil_div(a.channels, CH);
    const int64_t blocks = a.batch * a.channel_tiles * a.ky_tiles;
    const size_t shared = sizeof(float4) * (a.modes_h / 2 + 1) * CH * a.ky;
    synthesize_columns<<<unsigned(blocks), unsigned(a.ky * a.k_slots), shared, stream>>>(a);
    return launched();
}

} // namespace
} // namespace turbofno

extern "C" turbofno_status turbofno_spectral_mix(const turbofno_layer *layer, CUstream_st *stream) {
    using namespace turbofno;
    turbofno_status status = ready(*layer);
    if (status != TURBOFNO_OK) return status;
    const Plan p = plan(*layer);
    if (is_1d(*layer)) return launch_product(*layer, p, stream);
    status = launch_analysis(*layer, p, stream);
    if (status == TURBOFNO_OK) status = launch_product(*layer, p, stream);
    if (status == TURBOFNO_OK) status = launch_synthesis(*layer, p, stream);
    return status;
}
