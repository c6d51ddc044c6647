// Every plan fits what the kernels and all devices allow, over a grid of shapes. Prints what is wrong; exit 1 if anything.
#include <cstdio>
#include <initializer_list>

#include "../../csrc/plan/plan.h"

static int wrong = 0;

static void expect(bool holds, const char *what, const turbofno_layer &s) {
    if (holds) return;
    std::printf("%s: batch %lld, channels %d %d, grid %dx%d, modes %dx%d\n", what, (long long)s.batch, s.c_in, s.c_out,
                s.h_in, s.w_in, s.modes_h, s.modes_w);
    ++wrong;
}

static void check(const turbofno_layer &s) {
    if (turbofno_unsupported(&s) != nullptr) return;
    const turbofno::Plan p = turbofno::plan(s);
    const int sums = s.modes_h / 2 + 1;
    const int shared_bytes = 48 * 1024;
    expect(p.row_fragments == 1 || p.row_fragments == 2, "row fragments", s);
    expect(p.splits >= 1 && int64_t(p.splits) * p.split_points >= s.w_in, "splits cover the row", s);
    expect((p.splits - 1) * p.split_points < s.w_in && p.split_points % 16 == 0, "no empty split", s);
    expect(p.analysis_ky * p.analysis_pairs <= 128, "threads of analyze_columns", s);
    expect(8 * 32 * (turbofno::kChannelsAtOnce * p.analysis_ky + 2 * p.analysis_pairs) <= shared_bytes,
           "shared memory of analyze_columns", s);
    expect(p.synthesis_ky >= 1 && p.synthesis_slots >= 1 && p.synthesis_ky * p.synthesis_slots <= 128,
           "threads of synthesize_columns", s);
    expect(16 * sums * turbofno::kChannelsAtOnce * p.synthesis_ky <= shared_bytes,
           "shared memory of synthesize_columns", s);
    expect(s.c_out % p.mix_pair == 0 && s.c_out / p.mix_pair * p.mix_groups <= 256, "threads of multiply_modes", s);
    expect(8 * s.c_in * p.mix_batch * p.mix_groups <= shared_bytes, "shared memory of multiply_modes", s);
    expect(p.rows % 256 == 0 && p.modes % 256 == 0 && p.mixed % 256 == 0 && p.partial % 256 == 0, "alignment", s);
    const size_t rows_out = 8 * size_t(s.batch) * s.c_out * s.h_out * s.modes_w;
    const size_t modes_in = 8 * size_t(s.modes_h) * s.modes_w * s.batch * s.c_in;
    expect(p.rows + rows_out <= p.modes && p.modes + modes_in <= p.mixed && p.mixed <= p.partial && p.partial <= p.bytes,
           "spectra do not overlap", s);
}

int main() {
    for (int64_t batch : {1LL, 2LL, 9LL, 4096LL, 65536LL})
        for (int c_in : {1, 8, 20, 48, 255, 256})
            for (int c_out : {1, 7, 16, 32, 48, 64, 255, 256})
                for (int h : {1, 8, 64, 421, 4096})
                    for (int w : {8, 64, 85, 421, 8192, 16384})
                        for (int modes_h : {1, 2, 7, 24, 127, 128})
                            for (int modes_w : {1, 5, 12, 33, 64, 128})
                                for (int processors : {1, 108, 132}) {
                                    turbofno_layer s{};
                                    s.batch = batch, s.c_in = c_in, s.c_out = c_out;
                                    s.h_in = s.h_out = h, s.w_in = s.w_out = w;
                                    s.modes_h = modes_h, s.modes_w = modes_w, s.multiprocessors = processors;
                                    check(s);
                                }
    return wrong != 0;
}
