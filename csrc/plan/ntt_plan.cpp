#include "ntt_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kLaneBits = 5;
constexpr int kSectorBits = 2; // four values of an int64 tensor are one sector of 32 bytes
constexpr int kUsualThreadBits = 7;
constexpr int kMinSplitBits = 10; // of a line that two launches spread over the card
constexpr int64_t kMaxLines = 1 << 24;

int word_bytes(const turbofno_ntt &t) { return t.prime == TURBOFNO_GOLDILOCKS ? 8 : 4; }

void add_stage(NttLaunch &launch, int bits, int lane_bits) { launch.stage[launch.stages++] = NttStage{bits, lane_bits}; }

// Every stage is one pass over registers.
void plan_shared(NttLaunch &launch, int radix_bits) {
    for (int left = launch.bits; left > 0; left -= radix_bits) add_stage(launch, std::min(left, radix_bits), 0);
}

// At most two stages. The lanes that hold no bits of the index hold neighbouring values, so that memory is read and written
// in whole sectors: the lines are strided where a launch is one of two.
void plan_shuffles(NttLaunch &launch, int radix_bits, bool strided) {
    const int beyond = launch.bits - radix_bits;
    if (!strided && beyond <= kLaneBits) return add_stage(launch, launch.bits, beyond);
    const int lanes = std::max(0, beyond - radix_bits);
    const int first = std::min(lanes - std::min(lanes, kLaneBits - kSectorBits), kLaneBits);
    add_stage(launch, radix_bits + first, first);
    add_stage(launch, launch.bits - radix_bits - first, lanes - first);
}

NttLaunch launch_of(const turbofno_ntt &t, int bits, int done, int tail) {
    const int radix_bits = bits_of(t.radix), line_threads = bits - radix_bits;
    const bool strided = done + tail > 0;
    NttLaunch launch{};
    launch.bits = bits;
    launch.done = done;
    launch.tail = tail;
    if (t.exchange == TURBOFNO_SHARED_MEMORY) {
        plan_shared(launch, radix_bits);
    } else {
        plan_shuffles(launch, radix_bits, strided);
    }
    launch.line_bits = std::max(strided ? kSectorBits : 0, kUsualThreadBits - line_threads);
    launch.thread_bits = line_threads + launch.line_bits;
    launch.shared_bytes = launch.stages > 1 ? word_bytes(t) << (bits + launch.line_bits) : 0;
    launch.lines = t.lines << (done + tail);
    launch.blocks = ceil_div(launch.lines, int64_t(1) << launch.line_bits);
    return launch;
}

} // namespace

NttPlan plan(const turbofno_ntt &t) {
    const int bits = bits_of(t.points), radix_bits = bits_of(t.radix);
    const bool fits = bits - radix_bits <= max_thread_bits(radix_bits) && word_bytes(t) << bits <= t.shared_bytes;
    const bool few = bits >= kMinSplitBits && t.lines * 2 <= t.multiprocessors;
    NttPlan p{};
    if (fits && !few) {
        p.launches = 1;
        p.launch[0] = launch_of(t, bits, 0, 0);
    } else {
        const int first = (bits + 1) / 2;
        p.launches = 2;
        p.launch[0] = launch_of(t, first, 0, bits - first);
        p.launch[1] = launch_of(t, bits - first, first, 0);
        p.workspace_bytes = (t.lines << bits) * word_bytes(t);
    }
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_ntt_unsupported(const turbofno_ntt *t) {
    using namespace turbofno;
    if (t->prime != TURBOFNO_BABY_BEAR && t->prime != TURBOFNO_GOLDILOCKS) return "unknown prime";
    const bool power_of_two = t->points > 0 && (t->points & (t->points - 1)) == 0;
    if (!power_of_two || t->points < 1 << kMinNttBits || t->points > 1 << kMaxNttBits) {
        return "a line is not a power of two in 64 .. 65536 values";
    }
    if (t->lines < 1 || t->lines > kMaxLines) return "the lines are not in 1 .. 2^24";
    if (t->radix != 2 && t->radix != 4 && t->radix != 8 && t->radix != 16) return "the radix is not 2, 4, 8 or 16";
    if (t->exchange != TURBOFNO_SHUFFLE && t->exchange != TURBOFNO_SHARED_MEMORY) return "unknown exchange";
    return nullptr;
}

extern "C" size_t turbofno_ntt_workspace_bytes(const turbofno_ntt *t) { return size_t(turbofno::plan(*t).workspace_bytes); }
