#include "model/cuda/queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/pause.h"
#include "model/cuda/block_reader.h"

namespace troupe::model {
namespace {

// Checks of a step's outcome for each query of the driver for errors: a check takes nanoseconds, a query a
// microsecond.
constexpr std::uint64_t kChecksPerDriverQuery = 1024;
constexpr std::uint64_t kChecksPerSwapQuery = 64;
// For exchanges that cannot be called back: so long a rank waits for them to end with those of the other
// ranks when an epoch has ended. If they do not, the rank is of no further use.
constexpr Duration kEndWithOthers = std::chrono::seconds(2);

DerivedLimits derived_limits(const wire::Capacity& capacity, const CudaSteps& steps) {
  if (capacity.max_drafts == 0) return {};
  return {steps.widths(), std::min(most_samples(capacity), capacity.max_tokens_per_step)};
}

template <class F>
auto guarded(Status& broken, F&& body) -> decltype(body()) {
  if (!broken.ok()) return broken;
  try {
    return body();
  } catch (const CudaError& error) {
    broken = failure(Code::internal, error.what());
    return broken;
  }
}

}  // namespace

CudaQueue::CudaQueue(const wire::Capacity& capacity, CudaModel model, Duration patience)
    : capacity_(capacity),
      patience_(patience),
      limits_(patience, model.ranks ? patience : StepLimits::kLeast),
      model_(std::move(model)),
      check_(capacity),
      media_(capacity, model_.encoder ? capacity.frame_patches : 0),
      gates_(capacity, model_.steps->gate_memory()),
      table_(capacity.max_slots, model_.decoder->spec().vision, nullptr,
             derived_limits(capacity, *model_.steps)),
      packer_(model_.steps->sequence_memory(), model_.steps->layout(), capacity.max_slots),
      waiting_(static_cast<std::size_t>(capacity.max_steps_in_flight)),
      work_(static_cast<std::size_t>(capacity.max_steps_in_flight) + kMaxCommandsQueued),
      flights_(static_cast<std::size_t>(capacity.max_steps_in_flight) + 1),
      samples_(static_cast<std::size_t>(most_samples(capacity))) {}

CudaQueue::~CudaQueue() {
  reset(0);
  if (broken_.ok()) return;
  // Freeing device memory waits for the GPU, for ever if a step hangs; the process could not report it then.
  // The driver frees it when the process ends.
  (void)model_.encoder.release();
  (void)model_.givers.release();
  (void)model_.remote.release();
  (void)model_.swap.release();
  (void)model_.steps.release();
  (void)model_.decoder.release();
  (void)model_.kv.release();
  (void)model_.ranks.release();
  (void)model_.device.release();
}

Result<bool> CudaQueue::prepare() {
  return guarded(broken_, [&]() -> Result<bool> {
    if (!model_.ranks) return true;
    if (!model_.ranks->join()) return false;
    if (model_.steps->graphs() == 0) model_.steps->capture();
    return true;
  });
}

Status CudaQueue::submit(const wire::RecordView& record) {
  return guarded(broken_, [&] { return submit_record(record); });
}

Status CudaQueue::submit_record(const wire::RecordView& record) {
  if (model_.ranks && model_.ranks->abandoned()) return {};  // nothing runs until reset()
  if (model_.ranks && !model_.ranks->joined()) return invalid("a record before the ranks have met");
  if (const auto* plan = record.as<wire::StepPlan>()) return submit_plan(record, *plan);
  if (const auto* masks = record.as<wire::StepMasks>()) return submit_masks(record, *masks);
  if (const auto* command = record.as<wire::CacheCommand>()) return submit_command(record, *command);
  if (const auto* media = record.as<wire::SequenceMedia>()) {
    if (Status s = media_.admit(record, *media); !s.ok()) return s;
    table_.announce(media->slot, media_.items(media->slot));
    return {};
  }
  return invalid("a record of kind " + std::to_string(static_cast<unsigned>(record.header().kind)) +
                 " is no work for an executor, or too short for its kind");
}

Status CudaQueue::encode(const wire::EncodeMedia& command, std::span<const std::byte> patches) {
  if (!broken_.ok()) return broken_;
  if (model_.ranks && model_.ranks->abandoned()) return {};  // nor does SequenceMedia come through then
  if (Status s = media_.admit(command, patches.size()); !s.ok()) return s;
  model_.encoder->add(command, media_.items(command.slot)[static_cast<std::size_t>(command.item)], patches);
  return {};
}

void CudaQueue::skip_encoding(const wire::EncodeMedia&) {
  if (model_.encoder) model_.encoder->skip();
}

bool CudaQueue::may_run(const wire::RecordView& record, const wire::StepPlan& plan) const {
  return plan.after_cache_command <= commands_ &&
         (!model_.remote || model_.remote->through(plan.after_cache_command)) &&
         (!model_.encoder ||
          (model_.encoder->has_encoded(record.array(plan.rows)) && !model_.encoder->has_turn()));
}

Status CudaQueue::submit_plan(const wire::RecordView& record, const wire::StepPlan& plan) {
  const std::size_t out = steps_out_ + waiting_.size();
  if (out == static_cast<std::size_t>(capacity_.max_steps_in_flight)) {
    return failure(Code::overloaded, std::to_string(out) + " steps are in flight already");
  }
  if (Status s = media_.check(record, plan); !s.ok()) return s;
  if (Status s = check_.admit(record, plan); !s.ok()) return s;
  media_.admitted(record, plan);
  gates_.open(record, plan);
  if (waiting_.empty() && held_ == 0 && may_run(record, plan)) {
    launch(record, plan);
  } else {
    waiting_.push(record.bytes(), 0);
  }
  return {};
}

Status CudaQueue::submit_masks(const wire::RecordView& record, const wire::StepMasks& masks) {
  if (Status s = gates_.take(record, masks); !s.ok()) return s;
  end_held();
  launch_waiting();
  return {};
}

void CudaQueue::launch_waiting() {
  while (!waiting_.empty() && held_ == 0) {
    wire::RecordView record;
    TROUPE_CHECK(wire::RecordView::open(waiting_.front(), record));
    const auto& plan = *record.as<wire::StepPlan>();
    if (!may_run(record, plan)) return;
    launch(record, plan);
    waiting_.pop();
  }
}

void CudaQueue::end_held() {
  if (held_ == 0 || !gates_.ready(held_)) return;
  CudaSteps& steps = *model_.steps;
  const StepBatch& batch = flight(steps.launched()).batch;
  StepPacker::pack_gates(batch, gates_, held_, steps.held_gates());
  steps.end_held(gates_.masks(held_));
  let_go();
}

void CudaQueue::let_go() {
  for (std::size_t i = 0; i < count_; ++i) {
    Work& work = work_[(first_ + i) % work_.size()];
    if (is_held(work)) work.end.record(*model_.device);
  }
  held_ = 0;
  progress_ = Clock::now();
}

void CudaQueue::launch(const wire::RecordView& record, const wire::StepPlan& plan) {
  model_.device->set_step(plan.step);
  if (model_.swap) model_.swap->delay(model_.device->stream(), plan.after_cache_command);
  Flight& flight = this->flight(model_.steps->launched() + 1);
  table_.apply(record, plan, flight.batch);
  if (model_.encoder) launch_media(record, plan, flight);
  const PackedStep packed = packer_.pack(record, plan, table_, flight.batch, model_.steps->next_piece());
  flight.scores = packed.scores;
  flight.copies = packed.scores > 0 || packed.tops > 0 || !packed.embeds.empty();
  Work& work = add_work();
  work.is_step = true;
  work.number = plan.step;
  work.kind = packed.decode ? StepKind::decode : StepKind::prompt;
  work.launched = model_.steps->launch(packed);
  work.end.record(*model_.device);
  if (packed.held()) held_ = plan.step;
  ++steps_out_;
  end_held();  // its masks may have come already
}

void CudaQueue::launch_media(const wire::RecordView& record, const wire::StepPlan& plan, Flight& flight) {
  CudaEncoder& encoder = *model_.encoder;
  for (const SlotRef slot : record.array(plan.finished)) encoder.finish(slot);
  encoder.find(flight.batch.embedded);
  const std::vector<MediaCheck::Used>& used = media_.used(record, plan);
  flight.used.assign(used.begin(), used.end());
  encoder.run_before_step(*model_.device, record.array(plan.rows));
}

CudaQueue::Work& CudaQueue::add_work() {
  if (count_ == 0) progress_ = Clock::now();
  return work_[(first_ + count_++) % work_.size()];
}

// A step writes its number to its outcome when it ends. That says nothing if the GPU failed, or of copies by
// the copy engine (scores, tops, embeddings).
bool CudaQueue::finished(const Work& work, bool ask_driver) const {
  if (!work.is_step) return work.end.passed();
  if (!model_.steps->finished(work.launched)) {
    if (ask_driver) (void)work.end.passed();
    return false;
  }
  return !flights_[work.launched % flights_.size()].copies || work.end.passed();
}

Result<bool> CudaQueue::poll(std::vector<std::byte>& out, TimePoint deadline) {
  return guarded(broken_, [&]() -> Result<bool> {
    if (model_.ranks && model_.ranks->abandoned()) {
      model_.ranks->leave();
      return false;
    }
    if (take_beside(out)) return true;
    if (count_ == 0) {
      const auto is_busy = [&] {
        return (model_.swap && model_.swap->open() > 0) || (model_.remote && model_.remote->open() > 0) ||
               (model_.encoder && !model_.encoder->empty());
      };
      while (count_ == 0 && is_busy() && Clock::now() < deadline) {
        if (take_beside(out)) return true;
        pause_cpu();
      }
      return false;
    }
    const Work& work = work_[first_];
    while (!finished(work, ++checks_ % kChecksPerDriverQuery == 0)) {
      const TimePoint now = Clock::now();
      if (is_held(work)) {
        progress_ = now;
      } else if (const Duration limit = work.is_step ? limits_.limit(work.kind) : patience_;
                 now - progress_ > limit) {
        (void)work.end.passed();
        if (model_.ranks) model_.ranks->leave();
        throw overdue(name(work), limit);
      }
      if (now >= deadline) return false;
      if (checks_ % kChecksPerSwapQuery == 0 && take_beside(out)) return true;
      pause_cpu();
    }
    write(work, out);
    first_ = (first_ + 1) % work_.size();
    --count_;
    const TimePoint now = Clock::now();
    if (work.is_step) {
      --steps_out_;
      limits_.ended(work.kind, now - progress_);
    }
    progress_ = now;
    if (model_.encoder && count_ == 0) model_.encoder->begin_turn();
    return true;
  });
}

Status CudaQueue::attach_peer(std::uint32_t peer, const PeerKvMemory& memory) {
  return guarded(broken_, [&]() -> Status {
    if (!model_.swap) return Executor::attach_peer(peer, memory);
    return model_.swap->attach(*model_.device, peer, memory);
  });
}

void CudaQueue::detach_peer(std::uint32_t peer, int rank) {
  if (model_.swap && broken_.ok()) model_.swap->detach(peer, rank);
  if (model_.remote && broken_.ok()) model_.remote->detach_pair(peer, rank);
}

Result<bool> CudaQueue::attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket,
                                    TellPair tell) {
  return guarded(broken_, [&]() -> Result<bool> {
    if (!model_.remote) return Executor::attach_pair(peer, memory, std::move(socket), std::move(tell));
    model_.swap->detach(peer, memory.rank);
    return model_.remote->attach_pair(peer, memory, std::move(socket), std::move(tell));
  });
}

void CudaQueue::give_pair(OwnedFd socket, std::uint64_t life) {
  if (!broken_.ok()) return;
  if (!model_.givers) {
    model_.givers = std::make_unique<CudaPairGivers>(
        *model_.device, static_cast<std::byte*>(model_.kv->data()),
        static_cast<std::size_t>(capacity_.kv_blocks), model_.decoder->kv().block_bytes());
  }
  model_.givers->give(std::move(socket), life);
}

Status CudaQueue::attach_remote_peer(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) {
  return guarded(broken_, [&]() -> Status {
    if (!model_.remote || !model_.remote->has(peer))
      return Executor::attach_remote_peer(peer, std::move(fetch), memory);
    model_.remote->attach(peer, std::move(fetch), memory);
    return {};
  });
}

Result<ReadBlock> CudaQueue::block_reader(std::span<std::byte> memory) {
  return guarded(broken_, [&]() -> Result<ReadBlock> {
    return read_blocks_of(*model_.device, model_.kv->data(), static_cast<std::size_t>(capacity_.kv_blocks),
                          model_.decoder->kv().block_bytes(), memory);
  });
}

bool CudaQueue::take_beside(std::vector<std::byte>& out) {
  return take_swapped(out) || take_fetched(out) || take_encoded(out);
}

bool CudaQueue::take_encoded(std::vector<std::byte>& out) {
  if (!model_.encoder || model_.encoder->empty()) return false;
  CudaEncoder& encoder = *model_.encoder;
  if (count_ == 0) encoder.run_alone();
  EndedEncoding ended;
  if (encoder.take_ended(ended)) {
    writer_.media_done(ended, out);
    launch_waiting();
    return true;
  }
  if (count_ == 0) launch_waiting();  // the encoder's turn may have ended
  // A piece may wait for the steps before it, which have limits of their own.
  if (count_ == 0 && encoder.is_held_up() && Clock::now() - encoder.progress() > patience_)
    throw overdue("a piece of an image or a video", patience_);
  return false;
}

void CudaQueue::write(const Work& work, std::vector<std::byte>& out) {
  if (!work.is_step) {
    if (model_.remote) model_.remote->end(work.number);
    writer_.cache_done({work.number, false, work.started_ns, now_ns()}, out);
    return;
  }
  const CudaSteps& steps = *model_.steps;
  Flight& flight = this->flight(work.launched);
  const std::size_t count = flight.batch.samples.size();
  const auto sampled = steps.sampled(work.launched);
  const auto results = steps.results(work.launched);
  for (std::size_t i = 0; i < count; ++i) {
    if (flight.batch.logprobs && flight.batch.samples[i].logprobs >= 0) samples_[i] = results[i];
    samples_[i].token = sampled[i].token;
    samples_[i].error = sampled[i].error;
  }
  resolve(flight, steps.yields(work.launched));
  // A row that samples again takes its token from the table: the slot's last sampled one is what it replaces.
  table_.commit(flight.batch, std::span(samples_).first(count));
  WorkerSequences::propose(flight.batch, steps.proposals(work.launched));
  for (const MediaCheck::Used& used : flight.used) model_.encoder->used(used.slot, used.item);
  embeddings_.resize(flight.batch.embeds.size() * static_cast<std::size_t>(capacity_.embedding_width));
  if (!embeddings_.empty()) model_.decoder->read_embeddings(steps.embeddings(work.launched), embeddings_);
  const kernels::StepOutcome& outcome = steps.outcome(work.launched);
  const std::int64_t finished = host_ns(outcome.finished_ns, outcome.finished_ns);
  writer_.step(work.number, flight.batch, std::span(samples_).first(count),
               steps.scores(work.launched).first(static_cast<std::size_t>(flight.scores)),
               steps.tops(work.launched).first(static_cast<std::size_t>(flight.batch.tops)),
               host_ns(outcome.started_ns, outcome.finished_ns), finished, out, embeddings_);
  gates_.close(work.number);
}

// In a decode step yields lie at the sequences' indices, else beside the derived ones.
void CudaQueue::resolve(Flight& flight, std::span<const kernels::Yield> yields) {
  StepBatch& batch = flight.batch;
  if (batch.derived.empty()) return;
  yields_.clear();
  for (std::size_t i = 0; i < batch.derived.size(); ++i) {
    yields_.push_back(yields[batch.width > 0 ? static_cast<std::size_t>(batch.derived[i].sequence) : i]);
  }
  table_.resolve(batch, yields_, std::span(samples_).first(batch.samples.size()));
}

// The GPU's clock and the host's differ by an offset and drift apart slowly. The host sees a step's end late
// and never early, so the smallest difference seen is the best estimate. It may rise by 100 ppm of the time
// that passes, to follow the drift.
std::int64_t CudaQueue::host_ns(std::uint64_t gpu_ns, std::uint64_t finished_gpu_ns) {
  const std::int64_t now = now_ns();
  const std::int64_t seen = now - static_cast<std::int64_t>(finished_gpu_ns);
  clock_offset_ns_ =
      clock_read_ns_ == 0 ? seen : std::min(seen, clock_offset_ns_ + (now - clock_read_ns_) / 10'000);
  clock_read_ns_ = now;
  return static_cast<std::int64_t>(gpu_ns) + clock_offset_ns_;
}

std::string CudaQueue::name(const Work& work) {
  return (work.is_step ? "step " : "cache command ") + std::to_string(work.number);
}

CudaError CudaQueue::overdue(const std::string& what, Duration limit) const {
  return CudaError(what + " has not ended after " +
                   std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) +
                   " s on " + model_.device->describe());
}

void CudaQueue::wait_for_all(Duration patience) {
  const TimePoint begin = Clock::now();
  while (model_.swap && !model_.swap->idle()) {
    if (Clock::now() - begin > patience) throw overdue(kCopyBeside, patience);
    pause_cpu();
  }
  while (model_.encoder && model_.encoder->is_running()) {
    if (Clock::now() - begin > patience) throw overdue("a piece of an image or a video", patience);
    pause_cpu();
  }
  for (std::size_t i = count_; i-- > 0;) {  // the last first: a held step's end may be behind it
    const Work& work = work_[(first_ + i) % work_.size()];
    while (!work.end.passed()) {
      if (Clock::now() - begin > patience) throw overdue(name(work), patience);
      pause_cpu();
    }
  }
}

void CudaQueue::reset(std::uint32_t epoch) {
  (void)guarded(broken_, [&]() -> Status {
    const bool calls_back = !model_.ranks || model_.ranks->lasting_graphs();
    if (model_.ranks) model_.ranks->leave();
    if (held_ != 0) {
      model_.steps->give_up_held();
      let_go();
    }
    wait_for_all(calls_back ? patience_ : std::min(patience_, kEndWithOthers));
    if (!model_.ranks) return {};
    if (!calls_back) model_.steps->drop_graphs();
    model_.ranks->begin_epoch(epoch);
    return {};
  });
  check_.reset();
  gates_.reset();
  held_ = 0;
  table_.reset();
  waiting_.clear();
  first_ = count_ = steps_out_ = 0;
  commands_ = 0;
  late_commands_.clear();
  media_.reset();
  for (Flight& flight : flights_) flight.used.clear();
  if (model_.encoder && broken_.ok()) model_.encoder->reset();
  if (model_.swap && broken_.ok()) model_.swap->forget();
  if (model_.remote && broken_.ok()) model_.remote->reset();
}

}  // namespace troupe::model
