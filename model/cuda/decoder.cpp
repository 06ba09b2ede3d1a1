#include "model/decoder.inl"
#include "gpu/cuda.h"
#include "model/weights.inl"

namespace troupe::model {

template class Weights<Cuda>;
template class Decoder<Cuda>;

}  // namespace troupe::model
