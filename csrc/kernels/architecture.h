// What the library was compiled for, as against what the card is: features of a card may be used only by code for it.
#pragma once

namespace turbofno {

// The virtual architecture, 80 or 90 say, that the code which runs on the current device was compiled for; less than the
// card's where that code is PTX of an older one. 0: there is none that runs there.
int code_architecture();

} // namespace turbofno
