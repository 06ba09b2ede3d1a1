#include "actors/cache/cache_actor.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "actors/record_bytes.h"

namespace troupe {
namespace {

using CacheSelf = cache_actor::stateful_pointer<CacheState>;

/// How often the names of other instances are looked at while blocks are expected: often within a step that
/// computes a chunk, rarely enough that reading a table of 100,000 blocks takes a fiftieth of a core.
constexpr std::chrono::milliseconds kLookForNames{10};

/// After a failed copy the contents of the forked blocks are unknown, so their sequences cannot go on: the
/// actor ends, and with it the engine.
void give_up(CacheSelf self, const char* why) {
  self->state.parts.log.error("cache_lost", {kv("why", why)});
  self->quit(caf::make_error(caf::sec::runtime_error, why));
}

void send_commands(CacheSelf self) {
  CacheState& state = self->state;
  for (std::size_t i = 0; i < state.cache.commands(); ++i)
    self->send(state.parts.link, SendCacheCommand{to_bytes(state.cache.command(i))});
}

/// Copies what has been named of expected prompts, and looks again later.
void copy_ahead(CacheSelf self) {
  CacheState& state = self->state;
  if (!state.cache.copies_ahead()) return;
  state.cache.copy_ahead();
  send_commands(self);
  if (state.cache.copied_ahead() > state.copied_ahead) {
    state.copied_ahead = state.cache.copied_ahead();
    state.parts.log.debug("copied_ahead", {kv("blocks", state.copied_ahead)});
  }
  if (!std::exchange(state.looks_for_names, true)) self->delayed_send(self, kLookForNames, CopyAhead{});
}

/// Tells the scheduler which fetches have ended, and the counts; the log, that the swap space fails.
void take_done(CacheSelf self, const wire::CacheDone& done) {
  CacheState& state = self->state;
  CacheGrants update;
  if (!state.cache.done(done, update)) return give_up(self, "the worker could not copy blocks");
  if (update.status.swap.failed > 0 && !state.swap_failed) {
    state.swap_failed = true;
    state.parts.log.warning("swap_failed", {kv("blocks", update.status.swap.failed),
                                            kv("then", "what was swapped out is computed again")});
  }
  if (update.status.peers.failed > state.peer_blocks_failed) {
    state.peer_blocks_failed = update.status.peers.failed;
    state.parts.log.debug("peer_copies_failed", {kv("blocks", update.status.peers.failed)});
  }
  copy_ahead(self);
  const bool fetches = update.status.swap.total > 0 || !state.parts.peers.empty();
  if (state.scheduler && fetches) self->send(state.scheduler, std::move(update));
}

void take_report(CacheSelf self, const CacheReport& report) {
  wire::RecordView view;
  if (!wire::RecordView::open(std::as_bytes(std::span(report.record)), view)) {
    return give_up(self, "a record of the cache ring is damaged");
  }
  if (const wire::CacheDone* done = view.as<wire::CacheDone>()) {
    take_done(self, *done);
  } else if (const wire::Inventory* inventory = view.as<wire::Inventory>()) {
    self->state.parts.log.info(
        "inventory", {kv("old_epoch", inventory->old_epoch), kv("sequences", inventory->sequences.count)});
  }
}

void link_up(CacheSelf self, const LinkUp& up) {
  const std::int32_t blocks = std::max(0, up.capacity.kv_blocks);
  const std::uint64_t block_bytes =
      blocks > 0 ? up.capacity.kv_bytes / static_cast<std::uint64_t>(blocks) : 0;
  self->state.cache.reset(up.epoch, blocks, std::max(1, up.capacity.block_tokens),
                          {std::max(0, up.capacity.swap_blocks), block_bytes}, up.memory);
  self->state.swap_failed = false;
  self->state.peer_blocks_failed = self->state.copied_ahead = 0;
  self->state.parts.log.info(
      "link_up", {kv("epoch", up.epoch), kv("blocks", blocks), kv("swap_blocks", up.capacity.swap_blocks),
                  kv("found_again", self->state.cache.status().cached)});
}

}  // namespace

cache_actor::behavior_type cache_behavior(CacheSelf self, CacheParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  self->state.cache.keep_names(self->state.parts.names);
  self->state.cache.use_peers(PeerBlocks(self->state.parts.peers));
  return {
      answer_beat,
      [self](const CacheAsks& asks) {
        CacheState& state = self->state;
        state.scheduler = caf::actor_cast<scheduler_actor>(self->current_sender());
        state.cache.answer(asks, state.grants);
        send_commands(self);
        return state.grants;
      },
      [self](const CacheReport& report) { take_report(self, report); },
      [self](const LinkUp& up) { link_up(self, up); },
      [self](const FrontExpects& message) {
        if (self->state.parts.peers.empty()) return;
        self->state.cache.expect(message.front, message.expected);
        copy_ahead(self);
      },
      [self](const ForgetBlocks& forgotten) { self->state.cache.forget(forgotten); },
      [self](const FrontLost& lost) { self->state.cache.forget_front(lost.front); },
      [self](const CopyAhead&) {
        self->state.looks_for_names = false;
        copy_ahead(self);
      },
      [self](const ResetPrefixCache&) {
        const std::int32_t blocks = self->state.cache.reset_prefixes();
        self->state.parts.log.info("prefix_cache_reset", {kv("blocks", blocks)});
        return blocks;
      },
      [self](caf::get_atom) { return self->state.cache.status(); },
  };
}

}  // namespace troupe
