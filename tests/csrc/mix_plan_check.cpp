// Every plan of a mix fits what the kernels and all devices allow, over a grid of shapes. Prints what is wrong; exit 1
// if anything is, or if nothing was checked.
#include <cstdio>
#include <initializer_list>

#include "../../csrc/plan/mix_plan.h"

static int wrong = 0, checked = 0;

static void expect(bool holds, const char *what, const turbofno_mix &s) {
    if (holds) return;
    std::printf("%s: batch %lld, channels %d %d, h %d %d, modes %dx%d\n", what, (long long)s.batch, s.c_in, s.c_out,
                s.h_in, s.h_out, s.modes_h, s.modes_w);
    ++wrong;
}

static void check_columns(const turbofno::ColumnsPlan &p, int64_t columns, int from, int to, const turbofno_mix &s) {
    using namespace turbofno;
    expect(16 * p.tiles > to / 2 && 16 * (p.tiles - 1) <= to / 2, "tiles cover what comes out", s);
    expect(8 * p.steps > from / 2 && 8 * (p.steps - 1) <= from / 2, "steps cover what goes in", s);
    if (p.warp_tiles == 0) {
        expect(p.steps <= kHeldSteps, "a warp holds its terms", s);
        expect(p.groups >= 1 && p.groups <= p.tiles, "each block has a tile", s);
    } else {
        expect(p.warp_tiles >= 1 && p.warp_tiles <= 3, "there is a kernel for the tiles of a warp", s);
        expect(p.groups * p.warp_tiles >= p.tiles && (p.groups - 1) * p.warp_tiles < p.tiles,
               "blocks cover the tiles", s);
    }
    expect(p.blocks / p.groups * kColumnWarps * kWarpColumns >= columns, "blocks cover the columns", s);
}

static void check(const turbofno_mix &s) {
    using namespace turbofno;
    if (turbofno_mix_unsupported(&s) != nullptr) return;
    ++checked;
    const MixPlan plan = plan_mix(s);
    const ModesPlan &p = plan.modes;
    expect(p.batch_fragments == 1 || p.batch_fragments == 2 || p.batch_fragments == 4, "batch fragments", s);
    expect(p.modes == 1 || p.modes == 2 || p.modes == 4, "modes of a block", s);
    expect(p.threads == 32 * p.modes * p.channel_tiles && p.threads >= 32 && p.threads <= 32 * kMostModeWarps,
           "threads of multiply_modes", s);
    expect(p.batch_tiles * p.batch_fragments * 8 >= s.batch, "tiles cover the batch", s);
    expect(p.mode_tiles * p.modes >= s.modes_w, "tiles cover the modes", s);
    expect(p.channel_groups * p.channel_tiles * 16 >= s.c_out, "tiles cover the channels", s);
    expect(p.blocks == p.batch_tiles * p.mode_tiles * p.channel_groups * s.modes_h, "blocks of multiply_modes", s);
    const int batch = 8 * p.batch_fragments, channels = (s.c_in + 7) / 8 * 8;
    const int weights = 32 * kWeightStages * p.threads;
    expect(p.shared_in >= channels * p.modes && 8 * batch * p.shared_in + weights <= p.shared_bytes,
           "input in shared memory", s);
    expect(p.shared_out >= 16 * p.channel_tiles * p.modes && 8 * batch * p.shared_out + weights <= p.shared_bytes,
           "output in shared memory", s);
    expect(p.modes == 1 || (p.shared_in % 2 == 0 && p.shared_out % 2 == 0), "pairs of modes are aligned", s);
    expect(p.shared_bytes <= kMostSharedBytes, "shared memory of multiply_modes", s);
    if (plan.one_row) {
        expect(plan.bytes == 0, "no workspace in 1D", s);
        return;
    }
    const int64_t in = s.batch * s.c_in * s.modes_w, out = s.batch * s.c_out * s.modes_w;
    check_columns(plan.analysis, in, s.h_in, s.modes_h, s);
    check_columns(plan.synthesis, out, s.modes_h, s.h_out, s);
    expect(plan.in_pitch >= in && plan.out_pitch >= out, "rows of coefficients", s);
    expect(plan.in_pitch % 16 == 0 && plan.out_pitch % 16 == 0 && plan.products % 128 == 0, "alignment", s);
    expect(plan.in_pitch < (1LL << 32) && plan.out_pitch < (1LL << 32), "pitches fit 32 bits", s);
    expect(plan.coefficients + 8 * size_t(s.modes_h) * plan.in_pitch <= plan.products &&
               plan.products + 8 * size_t(s.modes_h) * plan.out_pitch <= plan.bytes,
           "coefficients and products do not overlap", s);
}

int main() {
    for (int64_t batch : {1LL, 2LL, 9LL, 17LL, 4096LL, 65536LL})
        for (int c_in : {1, 4, 8, 20, 48, 255, 256})
            for (int c_out : {1, 7, 16, 32, 48, 64, 65, 255, 256})
                for (int h_in : {1, 8, 64, 421, 16384})
                    for (int h_out : {1, 8, 64, 421, 16384})
                        for (int modes_h : {1, 2, 7, 24, 31, 32, 127, 128})
                            for (int modes_w : {1, 2, 3, 5, 12, 33, 64, 128})
                                for (int processors : {1, 108, 132}) {
                                    turbofno_mix s{};
                                    s.batch = batch, s.c_in = c_in, s.c_out = c_out, s.h_in = h_in, s.h_out = h_out;
                                    s.modes_h = modes_h, s.modes_w = modes_w, s.multiprocessors = processors;
                                    check(s);
                                }
    return wrong != 0 || checked == 0;
}
