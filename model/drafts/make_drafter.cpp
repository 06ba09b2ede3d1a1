#include "model/drafts/make_drafter.h"

#include "model/drafts/ngram_drafter.h"

namespace troupe::model {

std::unique_ptr<Drafter> make_drafter(const config::SpeculationOptions& options,
                                      const wire::Capacity& capacity) {
  if (capacity.max_drafts == 0) return nullptr;
  return std::make_unique<NgramDrafter>(capacity.max_slots, options.min_ngram, options.max_ngram);
}

}  // namespace troupe::model
