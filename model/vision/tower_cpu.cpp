#include "gpu/cpu.h"
#include "model/vision/tower.inl"

namespace troupe::model {

template class VisionTower<Cpu>;

}  // namespace troupe::model
