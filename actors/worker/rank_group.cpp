#include "actors/worker/rank_group.h"

#include <algorithm>
#include <utility>

#include "actors/record_bytes.h"
#include "actors/worker/step_digest.h"
#include "base/check.h"
#include "ipc/block_names.h"

namespace troupe {
namespace {

std::string name_of(std::int32_t rank) { return "rank " + std::to_string(rank); }

RankGroup::Outcome fault(std::string what) { return {{}, std::move(what)}; }

}  // namespace

RankGroup::RankGroup(int ranks) : links_(static_cast<std::size_t>(ranks)) {
  TROUPE_CHECK(ranks >= 2 && ranks <= 64);
  all_ = ~std::uint64_t{0} >> (64 - ranks);
}

RankGroup::Change RankGroup::up(std::int32_t rank, LinkUp link) {
  if (!known(rank)) return {{}, {}, "there is no " + name_of(rank)};
  Change change = down(rank, name_of(rank) + " was restarted");
  links_[static_cast<std::size_t>(rank)] = std::move(link);
  const LinkUp* first = links_.front() ? &*links_.front() : nullptr;
  for (const std::optional<LinkUp>& other : links_) {
    if (first == nullptr || !other || other->epoch != first->epoch) return change;
  }
  for (std::size_t other = 1; other < links_.size(); ++other) {
    const wire::Capacity& of = links_[other]->capacity;
    if (of.block_tokens == first->capacity.block_tokens && of.vocab_size == first->capacity.vocab_size)
      continue;
    change.fault =
        "rank " + std::to_string(other) + " has blocks or a vocabulary of another size than rank 0";
    return change;
  }
  forget();
  up_ = true;
  epoch_ = first->epoch;
  change.up = least();
  return change;
}

RankGroup::Change RankGroup::down(std::int32_t rank, const std::string& why) {
  if (!known(rank)) return {{}, {}, "there is no " + name_of(rank)};
  links_[static_cast<std::size_t>(rank)].reset();
  if (!std::exchange(up_, false)) return {};
  forget();
  return {why, {}, {}};
}

LinkUp RankGroup::least() const {
  LinkUp all = *links_.front();
  for (std::size_t rank = 1; rank < links_.size(); ++rank) {
    const wire::Capacity& of = links_[rank]->capacity;
    wire::Capacity& least = all.capacity;
    all.memory = ipc::lives_together(all.memory, links_[rank]->memory);
    least.kv_blocks = std::min(least.kv_blocks, of.kv_blocks);
    least.max_slots = std::min(least.max_slots, of.max_slots);
    least.max_tokens_per_step = std::min(least.max_tokens_per_step, of.max_tokens_per_step);
    least.max_model_len = std::min(least.max_model_len, of.max_model_len);
    least.max_steps_in_flight = std::min(least.max_steps_in_flight, of.max_steps_in_flight);
    least.max_logprobs = std::min(least.max_logprobs, of.max_logprobs);
    least.embedding_width = std::min(least.embedding_width, of.embedding_width);
    least.media_tokens = std::min(least.media_tokens, of.media_tokens);
    least.frame_patches = std::min(least.frame_patches, of.frame_patches);
    least.swap_blocks = std::min(least.swap_blocks, of.swap_blocks);
    least.weight_bytes += of.weight_bytes;
    least.kv_bytes += of.kv_bytes;
    least.arena_bytes += of.arena_bytes;
  }
  all.device = std::to_string(links_.size()) + " ranks, " + all.device;
  return all;
}

void RankGroup::forget() {
  steps_.clear();
  commands_.clear();
  encodings_.clear();
  ended_ = 0;
}

RankGroup::Outcome RankGroup::step(std::int32_t rank, Bytes record) {
  wire::RecordView view;
  if (!known(rank) || !wire::RecordView::open(std::as_bytes(std::span(record)), view)) {
    return fault("the answer of " + name_of(rank) + " to a step is damaged");
  }
  if (!up_ || view.header().epoch != epoch_) return {};
  if (rank == 0) {
    const auto* result = view.as<wire::StepResult>();
    if (result == nullptr) return fault("rank 0 has ended a step without a result");
    return take_step(rank, result->step, digest_of(view), std::move(record));
  }
  const auto* end = view.as<wire::StepEnd>();
  if (end == nullptr) return fault(name_of(rank) + " has sent a result, which is rank 0's to send");
  return take_step(rank, end->step, end->digest, {});
}

RankGroup::Outcome RankGroup::take_step(std::int32_t rank, std::uint64_t number, std::uint64_t digest,
                                        Bytes result) {
  // Steps are numbered from 1 and every rank answers them in order: a gap is a step that it left out.
  const std::uint64_t index = number - ended_ - 1;
  if (number <= ended_ || index > steps_.size()) {
    return fault(name_of(rank) + " has answered step " + std::to_string(number) + " out of order");
  }
  if (index == steps_.size()) steps_.push_back({number, {}, rank, digest, {}});
  Step& step = steps_[index];
  const bool in_order = index == 0 || (steps_[index - 1].answers.from >> rank & 1) != 0;
  if (!in_order || !step.answers.add(rank)) {
    return fault(name_of(rank) + " has answered step " + std::to_string(number) + " out of order");
  }
  if (digest != step.digest) {
    return fault(name_of(rank) + " has sampled other tokens than " + name_of(step.first_rank) + " in step " +
                 std::to_string(number));
  }
  if (rank == 0) step.result = std::move(result);
  if (!by_all(step.answers)) return {};
  // The first step is the only one that can be whole: each rank answers in order.
  Outcome out{std::move(step.result), {}};
  steps_.pop_front();
  ended_ = number;
  return out;
}

RankGroup::Outcome RankGroup::media(std::int32_t rank, Bytes record) {
  wire::RecordView view;
  if (!known(rank) || !wire::RecordView::open(std::as_bytes(std::span(record)), view) ||
      view.as<wire::MediaDone>() == nullptr) {
    return fault("the answer of " + name_of(rank) + " to an EncodeMedia is damaged");
  }
  const wire::MediaDone& done = *view.as<wire::MediaDone>();
  if (!up_ || done.header.epoch != epoch_) return {};
  const std::pair key{done.slot, done.item};
  Encoding& encoding = encodings_.try_emplace(key, Encoding{{}, done}).first->second;
  if (!encoding.answers.add(rank)) {
    return fault(name_of(rank) + " has answered twice for item " + std::to_string(done.item) + " of slot " +
                 std::to_string(done.slot.slot));
  }
  encoding.done.dropped |= done.dropped;
  encoding.done.failed |= done.failed;
  encoding.done.cached &= done.cached;
  encoding.done.started_ns = std::min(encoding.done.started_ns, done.started_ns);
  encoding.done.finished_ns = std::max(encoding.done.finished_ns, done.finished_ns);
  if (!by_all(encoding.answers)) return {};
  media_writer_.begin(epoch_);
  const wire::Header header = media_writer_.record().header;
  media_writer_.record() = encoding.done;
  media_writer_.record().header = header;
  encodings_.erase(key);
  return {to_bytes(media_writer_.finish()), {}};
}

RankGroup::Outcome RankGroup::cache(std::int32_t rank, Bytes record) {
  wire::RecordView view;
  if (!known(rank) || !wire::RecordView::open(std::as_bytes(std::span(record)), view)) {
    return fault("a record of the cache ring of " + name_of(rank) + " is damaged");
  }
  if (view.as<wire::Inventory>() != nullptr) {
    if (rank != 0) return {};
    return {std::move(record), {}};
  }
  const auto* done = view.as<wire::CacheDone>();
  if (done == nullptr) return fault(name_of(rank) + " has sent a record of an unexpected kind");
  if (!up_ || done->header.epoch != epoch_) return {};
  return take_done(rank, *done);
}

RankGroup::Outcome RankGroup::take_done(std::int32_t rank, const wire::CacheDone& done) {
  auto found = commands_.find(done.id);
  if (found == commands_.end()) found = commands_.emplace(done.id, Command{{}, done}).first;
  Command& command = found->second;
  if (!command.answers.add(rank)) {
    return fault(name_of(rank) + " has answered cache command " + std::to_string(done.id) + " twice");
  }
  command.done.failed |= done.failed;
  command.done.started_ns = std::min(command.done.started_ns, done.started_ns);
  command.done.finished_ns = std::max(command.done.finished_ns, done.finished_ns);
  if (!by_all(command.answers)) return {};
  writer_.begin(epoch_);
  wire::CacheDone& whole = writer_.record();
  whole.id = done.id;
  whole.failed = command.done.failed;
  whole.started_ns = command.done.started_ns;
  whole.finished_ns = command.done.finished_ns;
  commands_.erase(found);
  return {to_bytes(writer_.finish()), {}};
}

}  // namespace troupe
