// DFT along h to the kept modes, one complex product of the channels a mode, inverse DFT along h.
//
// Three kernels, with the kept modes (a small part of the field) passing through memory between them: so that any
// number of channels and modes fits, and each mode's weights are read once for many batch elements. 1D has only the
// product in the middle.
#include "spectral_mix.h"

extern "C" turbofno_status turbofno_spectral_mix(const turbofno_mix *mix, CUstream_st *stream) {
    using namespace turbofno;
    if (turbofno_mix_unsupported(mix) != nullptr) return TURBOFNO_UNSUPPORTED;
    if (mix->spectra == nullptr || mix->weight == nullptr || mix->mixed == nullptr) return TURBOFNO_NULL_POINTER;
    const MixPlan plan = plan_mix(*mix);
    if (plan.one_row) return multiply_modes(*mix, plan, stream);
    if (mix->column_analysis == nullptr || mix->column_synthesis == nullptr || mix->workspace == nullptr) {
        return TURBOFNO_NULL_POINTER;
    }
    turbofno_status status = analyze_columns(*mix, plan, stream);
    if (status == TURBOFNO_OK) status = multiply_modes(*mix, plan, stream);
    if (status == TURBOFNO_OK) status = synthesize_columns(*mix, plan, stream);
    return status;
}
