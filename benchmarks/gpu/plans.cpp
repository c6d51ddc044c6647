// Lists all plans of a tile program, for plans.py.
#include "../../csrc/plan/tile_plans.h"

extern "C" int list_tile_plans(const turbofno_tile *tile, turbofno_tile_plan *plans, int most) {
    int count = 0;
    turbofno::each_plan(*tile, [&](const turbofno::TilePlan &plan) {
        if (count == most) return;
        plans[count] = {};
        turbofno::describe(*tile, plan, plans[count++]);
    });
    return count;
}
