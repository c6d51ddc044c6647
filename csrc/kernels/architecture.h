// The architecture that the running code was compiled for. It may be older than the device's.
#pragma once

namespace turbofno {

// Virtual architecture (80, 90, ..) of the code that runs on the current device, or 0 if the library has none for it. It is
// lower than the device's if the driver compiled older PTX.
int compiled_architecture();

} // namespace turbofno
