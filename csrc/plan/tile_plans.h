// All plans of a tile program. Host code only.
#pragma once

#include "tile_plan.h"

#include <functional>

namespace turbofno {

// Calls `visit` with every plan that fits.
void each_plan(const turbofno_tile &tile, const std::function<void(const TilePlan &)> &visit);

// Writes a plan of `tile` for those who launch it.
void describe(const turbofno_tile &tile, const TilePlan &plan, turbofno_tile_plan &prepared);

} // namespace turbofno
