#include "actors/cache/cache_actor.h"

#include <algorithm>
#include <span>

#include "actors/record_bytes.h"

namespace troupe {
namespace {

using CacheSelf = cache_actor::stateful_pointer<CacheState>;

/// After a failed copy the contents of the forked blocks are unknown, so their sequences cannot go on: the
/// actor ends, and with it the engine.
void give_up(CacheSelf self, const char* why) {
  self->state.parts.log.error("cache_lost", {kv("why", why)});
  self->quit(caf::make_error(caf::sec::runtime_error, why));
}

void take_report(CacheSelf self, const CacheReport& report) {
  wire::RecordView view;
  if (!wire::RecordView::open(std::as_bytes(std::span(report.record)), view)) {
    return give_up(self, "a record of the cache ring is damaged");
  }
  if (const wire::CacheDone* done = view.as<wire::CacheDone>()) {
    if (!self->state.cache.done(*done)) give_up(self, "the worker could not copy blocks");
  } else if (const wire::Inventory* inventory = view.as<wire::Inventory>()) {
    self->state.parts.log.info(
        "inventory", {kv("old_epoch", inventory->old_epoch), kv("sequences", inventory->sequences.count)});
  }
}

void link_up(CacheSelf self, const LinkUp& up) {
  const std::int32_t blocks = std::max(0, up.capacity.kv_blocks);
  self->state.cache.reset(up.epoch, blocks, std::max(1, up.capacity.block_tokens));
  self->state.parts.log.info("link_up", {kv("epoch", up.epoch), kv("blocks", blocks)});
}

}  // namespace

cache_actor::behavior_type cache_behavior(CacheSelf self, CacheParts parts) {
  self->state.parts = std::move(parts);
  return {
      [self](const CacheAsks& asks) {
        CacheState& state = self->state;
        state.cache.answer(asks, state.grants);
        const std::span<const std::byte> command = state.cache.command();
        if (!command.empty()) self->send(state.parts.link, SendCacheCommand{to_bytes(command)});
        return state.grants;
      },
      [self](const CacheReport& report) { take_report(self, report); },
      [self](const LinkUp& up) { link_up(self, up); },
      [self](const ResetPrefixCache&) {
        const std::int32_t blocks = self->state.cache.reset_prefixes();
        self->state.parts.log.info("prefix_cache_reset", {kv("blocks", blocks)});
        return blocks;
      },
      [self](caf::get_atom) { return self->state.cache.status(); },
  };
}

}  // namespace troupe
