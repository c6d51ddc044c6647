// Loads and stores of a warp's tile of a field: all channels of 16 neighbouring points, in the order of warp_mma.cuh.
#pragma once

#include "l2_policy.h"
#include "prefetch.cuh"
#include "warp_mma.cuh"

namespace turbofno {

// The position of a warp's 16 points, the same for all lanes. Lane (g, t) has the points g and g + 8.
struct TilePosition {
    int row, b, o; // row = b * outer + o
    int point; // the first of 16
};

__device__ __forceinline__ float4 load_four(const float *from) { return *reinterpret_cast<const float4 *>(from); }

__device__ __forceinline__ float4 load_four(const __nv_bfloat16 *from) {
    const uint2 words = *reinterpret_cast<const uint2 *>(from);
    const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&words.x));
    const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&words.y));
    return {a.x, a.y, b.x, b.y};
}

// Stores with a policy of L2 (l2_policy.h).
__device__ __forceinline__ void store_four(float *to, float4 v, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w),
                 "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void store_four(__nv_bfloat16 *to, float4 v, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(word(__floats2bfloat162_rn(v.x, v.y))),
                 "r"(word(__floats2bfloat162_rn(v.z, v.w))), "l"(policy)
                 : "memory");
}

// Elements from one point to the next, rounded up to whole 16-byte words.
template <typename Field> __host__ __device__ constexpr int pitch_of(int channels) {
    constexpr int kWord = 16 / int(sizeof(Field));
    return (channels + kWord - 1) / kWord * kWord;
}

// The channels of a field from a tile's first one on, and the first one of a lane, 4t.
struct LaneChannels {
    int count, first;

    // True if the lane has the channels 16s + 4t .. + 3; the compiler knows it where it knows the count.
    __device__ __forceinline__ bool has(int s) const { return 16 * s + 16 <= count || 16 * s + first < count; }
};

// This lane's two points of a channels-last field. A point beyond the row's end reads the last one and is not stored.
template <typename Field> struct Points {
    Field *at[2]; // channel 4t of the tile
    LaneChannels left;
    bool inside[2];
    uint64_t policy = kEvictNormal; // of stores

    __device__ __forceinline__ Points(const void *field, int channels, int first_channel, int row_points,
                                      const TilePosition &place, int lane)
        : left{channels - first_channel, 4 * (lane % 4)} {
        const int channel = first_channel + 4 * (lane % 4), first = place.point + lane / 4, last = row_points - 1;
        auto *all = const_cast<Field *>(static_cast<const Field *>(field)) + channel;
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            const int point = min(first + 8 * second, last);
            inside[second] = first + 8 * second <= last;
            at[second] = all + (int64_t(place.row) * row_points + point) * pitch_of<Field>(channels);
        }
    }

    // Channels 16s + 4t .. + 3 of both points; zeros beyond the last channel.
    __device__ __forceinline__ void load(float4 (&to)[2], int s) const {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            to[second] = left.has(s) ? load_four(at[second] + 16 * s) : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }

    __device__ __forceinline__ void store(int s, const float4 (&from)[2]) const {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            if (inside[second] && left.has(s)) store_four(at[second] + 16 * s, from[second], policy);
        }
    }
};

// The same for a channel-first float32 field.
struct ChannelFirstPoints {
    float *at[2];
    int64_t stride; // between channels
    int left;
    bool inside[2];

    __device__ __forceinline__ ChannelFirstPoints(const void *field, int channels, int first_channel, int outer, int row_points,
                                                  const TilePosition &place, int lane) {
        const int channel = first_channel + 4 * (lane % 4), first = place.point + lane / 4, last = row_points - 1;
        left = channels - channel;
        stride = int64_t(outer) * row_points;
        auto *row = const_cast<float *>(static_cast<const float *>(field)) + int64_t(place.b) * channels * stride +
                    channel * stride + int64_t(place.o) * row_points;
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            inside[second] = first + 8 * second <= last;
            at[second] = row + min(first + 8 * second, last);
        }
    }

    __device__ __forceinline__ void load(float4 (&to)[2], int s) const {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            const float *from = at[second] + 16 * s * stride;
            to[second].x = 16 * s < left ? from[0] : 0.0f;
            to[second].y = 16 * s + 1 < left ? from[stride] : 0.0f;
            to[second].z = 16 * s + 2 < left ? from[2 * stride] : 0.0f;
            to[second].w = 16 * s + 3 < left ? from[3 * stride] : 0.0f;
        }
    }

    __device__ __forceinline__ void store(int s, const float4 (&from)[2]) const {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            float *to = at[second] + 16 * s * stride;
            if (!inside[second]) continue;
            if (16 * s < left) to[0] = from[second].x;
            if (16 * s + 1 < left) to[stride] = from[second].y;
            if (16 * s + 2 < left) to[2 * stride] = from[second].z;
            if (16 * s + 3 < left) to[3 * stride] = from[second].w;
        }
    }
};

// The same for points in shared memory (prefetch.cuh).
template <typename Field> struct PrefetchedPoints {
    const Field *at;
    LaneChannels left;
    int pitch;

    __device__ __forceinline__ PrefetchedPoints(const void *buffer, int channels, int first_channel, int lane)
        : left{channels - first_channel, 4 * (lane % 4)}, pitch(pitch_of<Field>(channels)) {
        const int channel = first_channel + 4 * (lane % 4);
        at = static_cast<const Field *>(buffer) + lane / 4 * pitch + channel;
    }

    __device__ __forceinline__ void load(float4 (&to)[2], int s) const {
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            to[second] = left.has(s) ? load_four(at + 8 * second * pitch + 16 * s) : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
};

// Convert the four channels of both points to fragments 2s and 2s + 1, and back.
template <typename Fragment>
__device__ __forceinline__ void to_fragments(Fragment &even, Fragment &odd, const float4 (&points)[2]) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        even[2 * second] = points[second].x, even[2 * second + 1] = points[second].y;
        odd[2 * second] = points[second].z, odd[2 * second + 1] = points[second].w;
    }
}

template <typename Fragment>
__device__ __forceinline__ void to_points(float4 (&points)[2], const Fragment &even, const Fragment &odd) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        points[second] = {even[2 * second], even[2 * second + 1], odd[2 * second], odd[2 * second + 1]};
    }
}

__device__ __forceinline__ uint4 as_words(float4 v) {
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
}

__device__ __forceinline__ float4 as_floats(uint4 w) {
    return {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
}

// A split field (turbofno.h) of which `from` reads the words, in the order of split_points.
template <typename From> struct SplitPoints {
    From from;
    float inv_scale;

    __device__ __forceinline__ void load(uint4 (&to)[2], int s) const {
        float4 words[2];
        from.load(words, s);
        to[0] = as_words(words[0]), to[1] = as_words(words[1]);
    }

    __device__ __forceinline__ void load(float4 (&to)[2], int s) const {
        uint4 words[2];
        load(words, s);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            const uint4 w = words[second];
            const float2 a = joined(w.x, w.z), b = joined(w.y, w.w);
            to[second] = {a.x * inv_scale, a.y * inv_scale, b.x * inv_scale, b.y * inv_scale};
        }
    }
};

// Makes the A operand of 32 channels of a tile.
template <typename P>
__device__ __forceinline__ void to_operand(OperandA<P> &a, const float4 (&first)[2], const float4 (&second)[2]) {
    float four[4][4];
    to_fragments(four[0], four[1], first);
    to_fragments(four[2], four[3], second);
    to_operand(a, four);
}

// Loads that of the channels 32q .. 32q + 31.
template <typename P, typename From> __device__ __forceinline__ void load_operand(OperandA<P> &a, const From &x, int q) {
    float4 points[2][2];
    x.load(points[0], 2 * q);
    x.load(points[1], 2 * q + 1);
    to_operand(a, points[0], points[1]);
}

template <typename P, typename From>
__device__ __forceinline__ void load_operand(OperandA<P> &a, const SplitPoints<From> &x, int q) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        uint4 points[2];
        x.load(points, 2 * q + step);
#pragma unroll
        for (int second = 0; second < 2; ++second) {
            const uint4 w = points[second];
            a.high[step][second] = w.x, a.high[step][second + 2] = w.y;
            a.low[step][second] = w.z, a.low[step][second + 2] = w.w;
        }
    }
    a.inv_scale[0] = a.inv_scale[1] = x.inv_scale;
}

} // namespace turbofno
