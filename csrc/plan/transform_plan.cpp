#include "transform_plan.h"

#include <algorithm>

#include "limits.h"

namespace turbofno {
namespace {

constexpr int64_t kMaxColumns = (int64_t(1) << 31) - 1;
constexpr int64_t kMaxInner = 1 << 24;
constexpr int kMaxWarpTiles = 3;

} // namespace

TransformPlan plan(const turbofno_transform &t) {
    const int from = t.inverse ? t.modes : t.points, to = t.inverse ? t.points : t.modes;
    TransformPlan p{};
    p.tiles = ceil_div(to / 2 + 1, 16);
    p.steps = ceil_div(from / 2 + 1, 8);
    const int64_t column_groups = ceil_div(t.outer * t.inner, int64_t(kWarpColumns));
    if (p.steps <= kMaxResidentSteps) {
        p.groups = int(std::min<int64_t>(p.tiles, ceil_div(8 * int64_t(t.multiprocessors), column_groups)));
    } else {
        p.warp_tiles = even_piece(p.tiles, kMaxWarpTiles);
        const int64_t wanted = 24 * int64_t(t.multiprocessors); // warps
        while (p.warp_tiles > 1 && column_groups * ceil_div(p.tiles, p.warp_tiles) < wanted) --p.warp_tiles;
        p.groups = ceil_div(p.tiles, p.warp_tiles);
    }
    p.blocks = ceil_div(column_groups, int64_t(kColumnWarps)) * p.groups;
    return p;
}

} // namespace turbofno

extern "C" const char *turbofno_transform_unsupported(const turbofno_transform *t) {
    using namespace turbofno;
    if (t->outer < 1 || t->inner < 1 || t->outer * t->inner > kMaxColumns) return "the columns are not in 1 .. 2^31 - 1";
    if (t->inner > kMaxInner) return "the axes behind the transformed one have too many modes";
    if (t->points < 1 || t->points > kMaxPoints) return "a grid axis is not in 1 .. 16384 points";
    if (t->modes < 1 || t->modes > kMaxModes) return "an axis does not keep 1 .. 128 modes";
    if (t->modes > t->points) return "the grid does not hold the kept modes";
    if (!known_precision(t->precision)) return "unknown precision";
    return nullptr;
}
