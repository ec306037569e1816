// The kernels for this processor; calling the anchor keeps their registration in the binary.
#include "all.cu"
extern "C" void xtemu_kernels_anchor() {}
