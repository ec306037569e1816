// image_has_dependent_launch    *has = 1 if the kernels of this image wait for the previous kernel of a graph by
//                               themselves (xt_grid_dependency_sync), otherwise 0: PTX and machine code below sm_90
// Launch: one thread. Order: no sums.
#include "xt.cuh"

XT_KERNEL(image_has_dependent_launch, 1)(uint32_t* has) {
  xt_grid_dependency_sync();
  *has = xt_has_grid_dependency_sync();
}
XT_EXPORT(image_has_dependent_launch)
