#include "model/drafts/make_drafter.h"

#include "base/check.h"
#include "model/drafts/mtp_drafter.h"
#include "model/drafts/ngram_drafter.h"
#include "model/drafts/predicted_drafter.h"

namespace troupe::model {

std::unique_ptr<Drafter> make_drafter(const config::SpeculationOptions& options,
                                      const wire::Capacity& capacity, Decoder<Cpu>* decoder) {
  if (capacity.max_drafts == 0) return nullptr;
  const bool by_layer = options.method == config::DraftMethod::mtp && decoder != nullptr;
  std::unique_ptr<NgramDrafter> ngrams;
  if (!by_layer || options.with_ngram)
    ngrams = std::make_unique<NgramDrafter>(capacity.max_slots, options.min_ngram, options.max_ngram);
  std::unique_ptr<Drafter> made;
  if (by_layer) {
    TROUPE_CHECK(decoder->spec().draft_layers == 1);
    made = std::make_unique<MtpDrafter>(*decoder, capacity.max_slots, options.mtp_steps, std::move(ngrams));
  } else {
    made = std::move(ngrams);
  }
  return std::make_unique<PredictedDrafter>(capacity.max_slots, std::move(made));
}

}  // namespace troupe::model
