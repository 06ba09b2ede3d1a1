// In place of model/drafts/make_drafter.cpp, which needs the whole model: the executors of these targets
// draft nothing.
#include "model/drafts/make_drafter.h"

namespace troupe::model {

std::unique_ptr<Drafter> make_drafter(const config::SpeculationOptions&, const wire::Capacity&,
                                      Decoder<Cpu>*) {
  return nullptr;
}

}  // namespace troupe::model
