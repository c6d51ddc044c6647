// Policies of L2: which lines it gives up first. They are the values of `createpolicy.fractional` of a whole; as constants they
// cost no instructions.
#pragma once

#include <stdint.h>

namespace turbofno {

// Of data that nobody reads again: spectra stay in L2 while the fields, which are larger than it, pass through.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictNormal = 0x16F0000000000000;

} // namespace turbofno
