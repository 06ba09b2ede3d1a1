#pragma once
// The drafter that the options ask for.
#include <memory>

#include "config/options.h"
#include "ipc/wire.h"
#include "model/decoder.h"
#include "model/drafts/drafter.h"

namespace troupe::model {

/// Null when capacity.max_drafts is 0. `decoder`: outlives the drafter; null where there is no model, of
/// which method mtp needs the draft layer.
std::unique_ptr<Drafter> make_drafter(const config::SpeculationOptions& options,
                                      const wire::Capacity& capacity, Decoder<Cpu>* decoder);

}  // namespace troupe::model
