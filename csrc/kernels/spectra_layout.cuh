// Where spectra lie in memory: complex [batch][channels][outer][modes] or, with an even number of channels, channels last:
// [batch][outer][modes][channels].
#pragma once

#include <stdint.h>

#include <type_traits>

namespace turbofno {

// The same number, of which the compiler computes nothing ahead of its use: a row's layout would fill registers while its points
// are computed.
__device__ __forceinline__ int here(int number) {
    asm volatile("" : "+r"(number));
    return number;
}

template <bool CHANNELS_LAST> struct SpectraLayout {
    int64_t outer;
    int modes, channels;

    // Complex numbers before the row o of batch element b, and from one channel or mode to the next.
    __device__ __forceinline__ int64_t row(int b, int o) const {
        if constexpr (CHANNELS_LAST) return int64_t(b * int(outer) + o) * (modes * channels); // rows are fewer than 2^31
        return (int64_t(b) * channels * outer + o) * modes;
    }
    __device__ __forceinline__ int64_t channel_step() const { return CHANNELS_LAST ? 1 : outer * modes; }
    __device__ __forceinline__ int mode_step() const { return CHANNELS_LAST ? channels : 1; }
};

enum class Layouts { kChannelsFirst, kChannelsLast, kBoth }; // that a kernel has code for

// use(std::bool_constant<channels_last>): each layout has code of its own.
template <Layouts LAYOUTS, typename Use> __device__ __forceinline__ void with_layout(bool channels_last, const Use &use) {
    if (LAYOUTS == Layouts::kChannelsLast || (LAYOUTS == Layouts::kBoth && channels_last)) {
        use(std::true_type{});
    } else {
        use(std::false_type{});
    }
}

// Writes values to a row's spectra. A lane has a mode's values of the channels `channel` = 4q + g % 2 and `channel` + 2 (g = lane
// / 4, q = g / 2). With the channels last it exchanges one of them with its neighbour in g and writes two neighbouring channels.
template <bool CHANNELS_LAST> struct ChannelsWriter {
    float2 *to; // the first value that this lane writes
    int64_t channel_step;
    int mode_step, mode, modes, channel, channels;
    bool second; // of the pairs of channels 4q .. 4q + 3

    __device__ __forceinline__ ChannelsWriter(const SpectraLayout<CHANNELS_LAST> &layout, float2 *row, int mode, int end, int channel,
                                              int lane)
        : channel_step(layout.channel_step()), mode_step(layout.mode_step()), mode(mode), modes(end), channel(channel),
          channels(layout.channels), second((lane & 4) != 0) {
        if (CHANNELS_LAST && second) ++this->channel;
        to = row + this->channel * channel_step + mode * mode_step;
    }

    // The values of `modes_on` modes and `channels_on` channels on. All lanes of a warp must call it.
    __device__ __forceinline__ void operator()(int modes_on, int channels_on, float2 low, float2 high) const {
        float2 *const at = to + modes_on * mode_step + channels_on * channel_step;
        const bool has_mode = mode + modes_on < modes;
        if constexpr (CHANNELS_LAST) {
            const float2 given = second ? low : high;
            const float2 taken{__shfl_xor_sync(0xffffffffu, given.x, 4), __shfl_xor_sync(0xffffffffu, given.y, 4)};
            const float4 pair = second ? float4{taken.x, taken.y, high.x, high.y} : float4{low.x, low.y, taken.x, taken.y};
            if (has_mode && channel + channels_on < channels) *reinterpret_cast<float4 *>(at) = pair;
        } else if (has_mode) {
            if (channel + channels_on < channels) *at = low;
            if (channel + channels_on + 2 < channels) at[2 * channel_step] = high;
        }
    }
};

} // namespace turbofno
