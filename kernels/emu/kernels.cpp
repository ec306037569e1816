// All kernels, compiled for the CPU. Compiled twice: plain, and with every memory access instrumented
// (instrumented.cpp). XTEMU_LIST is the name of the function that returns the kernel list.
#include "all.cu"
XT_BEGIN
#include "emu/faults.cu"
XT_END
extern "C" const xtemu::Kernel* XTEMU_LIST() { return xtemu::kernels; }
