// The operands of fourier_rows on their way into shared memory: rows of the skip and of R', slabs of x, tables.
#pragma once

#include "async_copy.cuh"
#include "row_product.cuh"
#include "row_quads.cuh"
#include "row_team.cuh"
#include "warpgroup.cuh"

namespace turbofno {

constexpr float kSynthesisBack = 1.0f / 8192; // undoes the scale of _cuda_tables.py
constexpr int kQuads = kRows * kChunk / 4 / 32; // of x, a thread's share of a slab

template <typename Field> struct Quad {
    using type = float4;
};
template <> struct Quad<__nv_bfloat16> {
    using type = uint2;
};

// Two neighbours of a row of `terms` floats; zeros for what is not there. EVEN: so is `terms`, and rows start at whole
// pairs.
template <bool EVEN> __device__ __forceinline__ float2 load_two(const float *row, int k, int terms) {
    if constexpr (EVEN) return k < terms ? __ldg(reinterpret_cast<const float2 *>(row + k)) : float2{};
    return {k < terms ? __ldg(row + k) : 0.0f, k + 1 < terms ? __ldg(row + k + 1) : 0.0f};
}

// 16 rows of `terms` floats as left operands, each row with its own scale; `rows` of them there are. Rows of up to 32
// terms are read once, longer ones once for their scales and once to be split.
template <typename P, bool EVEN> struct LeftStage {
    const float *row[2];
    int there[2];
    float2 v[2][4];

    __device__ __forceinline__ LeftStage(const float *from, int64_t stride, int rows, int terms) {
        const int g = threadIdx.x % 32 / 4;
        row[0] = from + g * stride;
        row[1] = row[0] + 8 * stride;
        there[0] = g < rows ? terms : 0;
        there[1] = g + 8 < rows ? terms : 0;
        load(0);
    }

    __device__ __forceinline__ void load(int k0) {
        k0 += threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = load_two<EVEN>(row[i % 2], k0 + i / 2 * 8, there[i % 2]);
    }

    __device__ __forceinline__ void store(uint4 *to, float (&back)[2], int terms) {
        Scale scale[2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
        if constexpr (P::kScaled) {
            float magnitude[2] = {0.0f, 0.0f};
            for (int k0 = 0; k0 < terms; k0 += 32) {
                if (k0 > 0) load(k0);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    magnitude[i % 2] = largest(largest(magnitude[i % 2], v[i / 4][i % 4].x), v[i / 4][i % 4].y);
                }
            }
            scale[0] = scale_of(largest_of_row(magnitude[0]));
            scale[1] = scale_of(largest_of_row(magnitude[1]));
        }
        for (int k0 = 0; k0 < terms; k0 += 32) {
            if (terms > 32) load(k0);
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                if (k0 + 16 * step >= terms) break;
                Left left;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    split<P>(v[step][i].x, v[step][i].y, scale[i % 2].to, left.high[i], left.low[i]);
                }
                store_left<P>(to + (k0 / 16 + step) * kLeftWords<P>, left);
            }
        }
        back[0] = scale[0].back;
        back[1] = scale[1].back;
    }
};

// The warp's rows of R'.
template <typename P>
__device__ __forceinline__ void stage_spectra(const Team &team, const RowsArguments &a, const Place &at, int steps,
                                              Rows &back) {
    const int64_t stride = int64_t(a.h) * a.columns;
    const float *from = a.spectra + row_of(at, a.c_out, team.first_channel, a.h) * a.columns;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
        LeftStage<P, true> stage(from + 16 * m * stride, stride, a.c_out - team.first_channel - 16 * m, a.columns);
        stage.store(team.spectra + m * steps * kLeftWords<P>, back[m], a.columns);
    }
    if constexpr (P::kScaled) {
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) back[i / 2][i % 2] *= kSynthesisBack;
    }
}

// A lane's share of a slab from input channel `first` on, of which each warp has kRows: a quad of every second channel.
// Zeros for what is not there.
template <bool WHOLE, typename Field>
__device__ __forceinline__ void load_slab(typename Quad<Field>::type (&quads)[kQuads], const RowsArguments &a,
                                          const Team &team, const Place &at, int first) {
    const int lane = threadIdx.x % 32;
    first += kRows * team.member;
    const int channel = first + lane / 16, point = at.chunk * kChunk + lane % 16 * 4, left = a.w - point;
    const Field *from = static_cast<const Field *>(a.x) + row_of(at, a.c_in, channel, a.h) * a.w + point;
    const int64_t stride = 2 * int64_t(a.h) * a.w;
    if (WHOLE && first + kRows <= a.c_in && a.w - at.chunk * kChunk >= kChunk) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i, from += stride) quads[i] = load_quad<true>(from, 4);
    } else {
#pragma unroll
        for (int i = 0; i < kQuads; ++i, from += stride) {
            quads[i] = load_quad<WHOLE>(from, channel + 2 * i < a.c_in ? left : 0);
        }
    }
}

__device__ __forceinline__ float largest_of(float magnitude, float4 v) {
    return largest(largest(largest(largest(magnitude, v.x), v.y), v.z), v.w);
}

// High and low words of a quad: of its points 0 and 1, and of 2 and 3.
template <typename P>
__device__ __forceinline__ void split_quad(float4 v, float scale, uint32_t (&high)[2], uint32_t (&low)[2]) {
    split<P>(v.x, v.y, scale, high[0], low[0]);
    split<P>(v.z, v.w, scale, high[1], low[1]);
}
template <typename P>
__device__ __forceinline__ void split_quad(uint2 v, float, uint32_t (&high)[2], uint32_t (&)[2]) {
    high[0] = finite_or_nan(*reinterpret_cast<__nv_bfloat162 *>(&v.x));
    high[1] = finite_or_nan(*reinterpret_cast<__nv_bfloat162 *>(&v.y));
}

// Write the slab to the group's tile, in rows of kTilePitch or, SWIZZLED, in those of warpgroup.cuh; returns what
// undoes its scale.
template <typename P, bool SWIZZLED, typename Quad>
__device__ __forceinline__ float stage_slab(const Team &team, const Quad (&quads)[kQuads], int slab) {
    Scale scale{1.0f, 1.0f};
    if constexpr (P::kScaled) {
        float magnitude[2] = {0.0f, 0.0f}; // two, that they need not wait for each other
#pragma unroll
        for (int i = 0; i < kQuads; ++i) magnitude[i % 2] = largest_of(magnitude[i % 2], quads[i]);
        const float most = largest(magnitude[0], magnitude[1]);
        const unsigned bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
        if (team.thread % 32 == 0) team.maxima[team.member] = bits;
        team.wait(); // also: the tile before has been multiplied
        const unsigned others = team.maxima[min(team.thread % 32, team.threads / 32 - 1)];
        scale = scale_of(__uint_as_float(__reduce_max_sync(0xffffffffu, others)));
    } else {
        team.wait();
    }
    if (kRows * team.member < slab) {
        const int lane = threadIdx.x % 32, channel = kRows * team.member + lane / 16, quad = lane % 16;
        constexpr int kPitch = (SWIZZLED ? kSwizzledPitch : kTilePitch) / 2;
        uint32_t *to = reinterpret_cast<uint32_t *>(team.tile);
        const int word = channel * kPitch + quad % 4 + (SWIZZLED ? quad / 4 * 8 ^ lane / 16 * 4 : quad / 4 * 8);
        const int low_words = slab * kPitch;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
            uint32_t high[2], low[2];
            split_quad<P>(quads[i], scale.to, high, low);
            const int first = (SWIZZLED ? word ^ i % 4 * 8 : word) + i * 2 * kPitch; // two channels on
            const int second = SWIZZLED ? first ^ 4 : first + 4;
            to[first] = high[0], to[second] = high[1];
            if constexpr (P::kSplit) to[first + low_words] = low[0], to[second + low_words] = low[1];
        }
    }
    if constexpr (SWIZZLED) show_to_tensor_cores();
    team.wait();
    return scale.back;
}

// One chunk of both tables into the shared memory `to`.
template <typename P> __device__ __forceinline__ void fetch_tables(uint4 *to, const RowsArguments &a, int chunk) {
    const int words = ceil_div(a.columns, 16) * kPairs * kRightWords<P>;
    const int next_words = ceil_div(a.next_columns, 16) * kPairs * kRightWords<P>;
    const uint4 *from = a.table + int64_t(chunk) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) copy_async<16>(to + i, from + i, true);
    from = a.next_table + int64_t(chunk) * next_words;
    for (int i = threadIdx.x; i < next_words; i += blockDim.x) copy_async<16>(to + words + i, from + i, true);
}

} // namespace turbofno
