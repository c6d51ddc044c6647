#include "plane_fft_plan.h"

#include <algorithm>

namespace turbofno {
namespace {

constexpr int kBlockValues = 2048, kThreadValues = 16; // complex values of a block, of a thread

int length(const turbofno_plane_transform &transform, const turbofno_plane_axis &axis, int side) {
    const bool half = &axis == &transform.width &&
                      transform.kind == (side == 0 ? TURBOFNO_COMPLEX_TO_REAL : TURBOFNO_REAL_TO_COMPLEX);
    return half ? axis.points / 2 + 1 : axis.points;
}

PlaneSpan span_of(const turbofno_plane_transform &transform, const turbofno_plane_axis &axis, int side) {
    const int head = side == 0 ? axis.in_head : axis.out_head, tail = side == 0 ? axis.in_tail : axis.out_tail;
    return {head, length(transform, axis, side) - head - tail, head + tail};
}

PlaneSide side_of(const turbofno_plane_transform &transform, int side) {
    const PlaneSpan width = span_of(transform, transform.width, side);
    return {span_of(transform, transform.height, side), width, quotient(unsigned(width.stored))};
}

// Divides the planes among blocks of so many.
void share_planes(PlanePlan &p, int together) {
    p.together = together;
    const int columns = p.columns_first ? p.in.width.stored : p.out.width.stored;
    p.by_rows = quotient(unsigned(together * p.rows));
    p.by_columns = quotient(unsigned(together * columns));
    p.by_plane_columns = quotient(unsigned(columns));
    const int64_t wanted = ceil_div(int64_t(together) * p.rows * p.width.size, int64_t(64 * kThreadValues)) * 64;
    p.threads = int(std::clamp(wanted, int64_t(kMinPlaneThreads), int64_t(kMaxPlaneThreads)));
    const int places = p.in.height.stored + p.out.height.stored + 2 * (p.in.width.stored + p.out.width.stored);
    p.shared_bytes = 8 * together * p.rows * p.pitch + 4 * places;
    p.blocks = ceil_div(p.planes, int64_t(together));
}

} // namespace

const char *prepare(const turbofno_plane_transform &transform, PlanePlan &p) {
    if (transform.kind < TURBOFNO_COMPLEX || transform.kind > TURBOFNO_COMPLEX_TO_REAL) return "unknown kind of transform";
    p = {};
    for (const auto *axis : {&transform.height, &transform.width}) {
        if (axis->points < 2 || axis->points > kMaxFftSize) return "an axis has not 2 .. 8192 points";
        if (convolution_radices(axis->points).radix[0] != 0 ||
            !split_into_digits(axis->points, axis == &transform.height ? p.height : p.width)) {
            return "the size has a prime factor above 17";
        }
        for (int side = 0; side < 2; ++side) {
            const PlaneSpan span = span_of(transform, *axis, side);
            if (span.head < 0 || span.stored < std::max(span.head, 1) || span.gap < 0) {
                return "the values given or kept are not in 1 .. the length of a line";
            }
        }
    }
    constexpr int64_t most = (int64_t(1) << 31) - 1;
    if (transform.planes < 1 || transform.planes > most) return "the planes are not in 1 .. 2^31 - 1";
    // rows are not apart: neighbouring threads have neighbouring columns
    for (int i = 0; i < p.height.stages; ++i) p.height.pitch[i] = int(p.height.by_after[i].by);
    p.in = side_of(transform, 0);
    p.out = side_of(transform, 1);
    p.planes = transform.planes;
    p.real = transform.kind != TURBOFNO_COMPLEX;
    p.rows = p.real ? ceil_div(p.height.size, 2) : p.height.size;
    p.pitch = plane_pitch(p.width.pitch[0] * p.width.radix[0], p.width.size, p.real);
    p.columns_first = transform.kind == TURBOFNO_COMPLEX_TO_REAL || (!p.real && p.in.width.gap > 0);
    const bool odd = p.real && p.height.size % 2 == 1; // the last row's imaginary parts are not given
    p.cleared = p.in.height.gap > 0 || p.in.width.gap > 0 ? 0 : odd ? p.rows - 1 : p.rows;
    const int values = p.rows * p.pitch;
    share_planes(p, std::max(1, kBlockValues / values));
    if (p.shared_bytes > transform.shared_bytes) return "a plane does not fit in shared memory";
    return nullptr;
}

} // namespace turbofno

extern "C" const char *turbofno_plane_fft_unsupported(const turbofno_plane_transform *transform) {
    turbofno::PlanePlan p;
    return turbofno::prepare(*transform, p);
}
