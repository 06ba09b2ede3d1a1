#include "gpu/cuda.h"
#include "model/vision/tower.inl"

namespace troupe::model {

template class VisionTower<Cuda>;

}  // namespace troupe::model
