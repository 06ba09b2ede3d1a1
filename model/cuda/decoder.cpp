#include "gpu/cuda.h"
#include "model/decoder.inl"
#include "model/weights.inl"

namespace troupe::model {

template class Weights<Cuda>;
template class Decoder<Cuda>;

}  // namespace troupe::model
