#pragma once
// The memories from which a worker reads patches of images and videos.
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "ipc/patch_region.h"

namespace troupe {

/// Used by one thread. Who reads a region shares it, so that it stays mapped until that has ended.
class PatchRegions {
 public:
  using Region = std::shared_ptr<const ipc::PatchRegion>;

  /// `own`: of every front without a region of its own; null: there is none.
  explicit PatchRegions(Region own = nullptr) : own_(std::move(own)) {}

  /// The region in which the patches of the engine's front with this index lie; null: they are not mapped.
  Region of(std::uint32_t front) const {
    const auto other = others_.find(front);
    return other == others_.end() ? own_ : other->second;
  }

  /// The front's patches lie there from now on; null: they are nowhere.
  void set(std::uint32_t front, Region region) { others_.insert_or_assign(front, std::move(region)); }

 private:
  Region own_;
  std::map<std::uint32_t, Region> others_;
};

}  // namespace troupe
