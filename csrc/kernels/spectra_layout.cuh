// Where spectra lie in memory: complex [batch][channels][outer][modes] or, channels last, [batch][outer][modes][channels].
#pragma once

#include <stdint.h>

namespace turbofno {

struct SpectraLayout { // complex numbers from one batch element, row, channel or mode to the next
    int64_t batch, row, channel;
    int mode;

    __device__ __forceinline__ SpectraLayout(bool channels_last, int channels, int64_t outer, int modes)
        : batch(outer * modes * channels), row(channels_last ? int64_t(modes) * channels : modes),
          channel(channels_last ? 1 : outer * modes), mode(channels_last ? channels : 1) {}
};

// Writes values to a row's spectra. A lane has a mode's values of the channels `channel` = 4q + g % 2 and `channel` + 2 (g = lane
// / 4, q = g / 2). With the channels last it exchanges one of them with its neighbour in g and writes two neighbouring channels.
struct ChannelsWriter {
    float2 *to; // the first value that this lane writes
    int64_t channel_step;
    int mode_step, mode, modes, channel, channels;
    bool in_pairs, second; // 16 aligned bytes are written at once; channels 4q + 2 and 4q + 3

    __device__ __forceinline__ ChannelsWriter(const SpectraLayout &layout, float2 *row, int mode, int modes, int channel,
                                              int channels, int lane)
        : channel_step(layout.channel), mode_step(layout.mode), mode(mode), modes(modes), channels(channels),
          in_pairs(layout.channel == 1 && channels % 2 == 0), second((lane & 4) != 0) {
        this->channel = channel + (in_pairs && second ? 1 : 0);
        to = row + this->channel * layout.channel + mode * layout.mode;
    }
    template <typename Tile>
    __device__ __forceinline__ ChannelsWriter(const Tile &t, float2 *row, int mode, int channel, int lane)
        : ChannelsWriter(SpectraLayout(t.spectra_channels_last, t.channels, t.outer, t.next_modes), row, mode, t.next_modes,
                         channel, t.channels, lane) {}

    // The values of `modes_on` modes and `channels_on` channels on. All lanes of a warp must call it.
    __device__ __forceinline__ void operator()(int modes_on, int channels_on, float2 low, float2 high) const {
        float2 *const at = to + modes_on * mode_step + channels_on * channel_step;
        const bool has_mode = mode + modes_on < modes;
        if (in_pairs) {
            const float2 given = second ? low : high;
            const float2 taken{__shfl_xor_sync(0xffffffffu, given.x, 4), __shfl_xor_sync(0xffffffffu, given.y, 4)};
            const float4 pair = second ? float4{taken.x, taken.y, high.x, high.y} : float4{low.x, low.y, taken.x, taken.y};
            if (has_mode && channel + channels_on < channels) *reinterpret_cast<float4 *>(at) = pair;
            return;
        }
        if (has_mode && channel + channels_on < channels) *at = low;
        if (has_mode && channel + channels_on + 2 < channels) at[2 * channel_step] = high;
    }
};

} // namespace turbofno
