// Every kernel, for this processor. Compiled twice: plain, and with the compiler's instrumentation of
// every memory access, which calls check.cpp. XTEMU_LIST names the function that lists the kernels.
#include "all.cu"
XT_BEGIN
#include "emu/faults.cu"
XT_END
extern "C" const xtemu::Kernel* XTEMU_LIST() { return xtemu::kernels; }
