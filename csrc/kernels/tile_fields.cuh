// What a warp reads and writes of a field: all channels of 16 neighbouring points, in the order of products.cuh.
#pragma once

#include "products.cuh"

namespace turbofno {

// A warp's 16 points of a row; lane (g, t) has the points g and g + 8 of them.
struct Place {
    int64_t row; // b * outer + o
    int b, o;
    int point; // the lane's first
    bool inside[2]; // its two points are of the row
};

struct FieldShape {
    int64_t outer;
    int points, channels;
    bool channel_first;
    int first_channel; // of the tile
};

__device__ __forceinline__ float4 load_four(const float *from) { return *reinterpret_cast<const float4 *>(from); }

__device__ __forceinline__ float4 load_four(const __nv_bfloat16 *from) {
    const uint2 words = *reinterpret_cast<const uint2 *>(from);
    const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&words.x));
    const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&words.y));
    return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ void store_four(float *to, float4 v) { *reinterpret_cast<float4 *>(to) = v; }

__device__ __forceinline__ void store_four(__nv_bfloat16 *to, float4 v) {
    *reinterpret_cast<uint2 *>(to) = uint2{word(__floats2bfloat162_rn(v.x, v.y)), word(__floats2bfloat162_rn(v.z, v.w))};
}

// Where channel 0 of a point of a channel-first field lies, and the distance between its channels.
__device__ __forceinline__ int64_t channel_first_at(const FieldShape &shape, const Place &at, int second) {
    return (int64_t(at.b) * shape.channels * shape.outer + at.o) * shape.points + at.point + 8 * second;
}

// Channels `channel` .. + 3 of the lane's points; zeros where there is none.
template <typename Field>
__device__ __forceinline__ void load_channels(float4 (&to)[2], const void *field, const FieldShape &shape,
                                              const Place &at, int channel) {
    channel += shape.first_channel;
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        to[second] = float4{0.0f, 0.0f, 0.0f, 0.0f};
        if (!at.inside[second] || channel >= shape.channels) continue;
        if (shape.channel_first) {
            const int64_t stride = shape.outer * shape.points;
            const float *from = static_cast<const float *>(field) + channel_first_at(shape, at, second) + channel * stride;
            to[second].x = from[0];
            if (channel + 1 < shape.channels) to[second].y = from[stride];
            if (channel + 2 < shape.channels) to[second].z = from[2 * stride];
            if (channel + 3 < shape.channels) to[second].w = from[3 * stride];
        } else {
            const int pitch = (shape.channels + 3) & ~3;
            const int64_t point = at.row * shape.points + at.point + 8 * second;
            to[second] = load_four(static_cast<const Field *>(field) + point * pitch + channel);
        }
    }
}

template <typename Field>
__device__ __forceinline__ void store_channels(void *field, const FieldShape &shape, const Place &at, int channel,
                                               const float4 (&from)[2]) {
    channel += shape.first_channel;
    if (channel >= shape.channels) return;
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        if (!at.inside[second]) continue;
        if (shape.channel_first) {
            const int64_t stride = shape.outer * shape.points;
            float *to = static_cast<float *>(field) + channel_first_at(shape, at, second) + channel * stride;
            to[0] = from[second].x;
            if (channel + 1 < shape.channels) to[stride] = from[second].y;
            if (channel + 2 < shape.channels) to[2 * stride] = from[second].z;
            if (channel + 3 < shape.channels) to[3 * stride] = from[second].w;
        } else {
            const int pitch = (shape.channels + 3) & ~3;
            const int64_t point = at.row * shape.points + at.point + 8 * second;
            store_four(static_cast<Field *>(field) + point * pitch + channel, from[second]);
        }
    }
}

// Fragments 2s and 2s + 1 as the four channels of both points, and back.
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

} // namespace turbofno
