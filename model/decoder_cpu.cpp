#include "gpu/cpu.h"
#include "model/decoder.inl"
#include "model/weights.inl"

namespace troupe::model {

template class Weights<Cpu>;
template class Decoder<Cpu>;

}  // namespace troupe::model
