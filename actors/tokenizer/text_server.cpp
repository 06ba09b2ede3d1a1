#include "actors/tokenizer/text_server.h"

#include <pthread.h>

#include <chrono>
#include <optional>
#include <utility>

#include "actors/link/message_codec.h"
#include "actors/record_bytes.h"
#include "base/contain.h"
#include "base/thread_priority.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

/// The longest text that a request may have is encoded in a few seconds, on a busy machine in some ten.
constexpr auto kLongestJob = std::chrono::seconds(60);

std::optional<TextLane> lane_of(MessageType type) {
  switch (type) {
    case MessageType::encode: return TextLane::common;
    case MessageType::encode_long: return TextLane::long_texts;
    case MessageType::encode_background: return TextLane::background;
    default: return std::nullopt;
  }
}

}  // namespace

TextServer::TextServer(std::shared_ptr<Link> link, Encoder encoder, std::string build, Log log)
    : link_(std::move(link)), encoder_(std::move(encoder)), build_(std::move(build)), log_(std::move(log)) {
  link_->end().beat_elsewhere();
  watchdog_.watch({"text_link's receiver"}, [this] { return receiver_pulse_.beats(); });
  const auto start = [this](TextLane of, const char* name) {
    Lane& started = lane(of);
    watchdog_.watch({name, true, kLongestJob}, [&started] { return started.pulse.beats(); });
    started.thread = std::jthread([this, &started, of](const std::stop_token& stop) {
      if (of != TextLane::common) lower_thread_priority();
      work(started, stop);
    });
    ::pthread_setname_np(started.thread.native_handle(), name);
  };
  start(TextLane::common, "encode");
  start(TextLane::long_texts, "encode_long");
  start(TextLane::background, "encode_batches");
  receiver_ = std::jthread([this](const std::stop_token& stop) { receive(stop); });
  ::pthread_setname_np(receiver_.native_handle(), "text_link");
}

TextServer::~TextServer() {
  receiver_ = {};  // nothing new comes
  for (Lane& lane : lanes_) lane.thread = {};
}

void TextServer::beat() {
  watchdog_.check(Clock::now());
  if (!watchdog_.longest().late()) link_->end().beat();
}

std::string TextServer::silent() const { return watchdog_.longest().silent_part(); }

void TextServer::receive(const std::stop_token& stop) {
  greet();
  link_->receive(
      stop, receiver_pulse_,
      {[this](const Arrival& arrival) { arrived(arrival); },
       [this](std::uint32_t) {
         forget();
         greet();
       },
       // Without a receiver the process gives no sign of life any more, and another one takes its place.
       [this](const std::string& why) { log_.error("link_broken", {kv("why", why)}); }});
}

void TextServer::greet() {
  link_->send(MessageType::greeting, 0, encoded_view(Greeting{wire::kMessagesVersion, build_}));
}

void TextServer::arrived(const Arrival& arrival) {
  const auto of = lane_of(arrival.type);
  if (!of) return;
  Lane& to = lane(*of);
  const std::lock_guard lock(to.mutex);
  to.jobs.push_back({arrival.tag, arrival.epoch, to_bytes(arrival.bytes)});
  to.more.notify_one();
}

/// The front that has asked is gone.
void TextServer::forget() {
  for (Lane& lane : lanes_) {
    const std::lock_guard lock(lane.mutex);
    lane.jobs.clear();
  }
}

void TextServer::work(Lane& lane, const std::stop_token& stop) {
  for (;;) {
    std::unique_lock lock(lane.mutex);
    if (!lane.more.wait(lock, stop, [&lane] { return !lane.jobs.empty(); })) return;
    if (stop.stop_requested()) return;
    const Job job = std::move(lane.jobs.front());
    lane.jobs.pop_front();
    lock.unlock();
    lane.pulse.begin();
    answer(job);
    lane.pulse.end();
  }
}

void TextServer::answer(const Job& job) {
  Encode request;
  Encoded encoded;
  if (decode(std::as_bytes(std::span(job.encode)), request)) {
    const std::string request_id = request.request_id;
    encoded = encoder_.encode(std::move(request), log_);
    if (encoded.status.ok() && log_.details(3)) {
      (void)contain(log_, "log of a prompt", request_id, [&] { log_prompts(request_id, encoded); });
    }
  } else {
    encoded.status =
        failure(Code::internal, "the request could not be read by the process that encodes texts");
  }
  Bytes bytes;
  encode(encoded, bytes);
  if (bytes.size() > Link::kMaxMessageBytes) {
    encoded = {};
    encoded.status = failure(Code::too_large, "what the request's text becomes is too long to be answered");
    bytes.clear();
    encode(encoded, bytes);
  }
  link_->send(MessageType::encoded, job.number, std::as_bytes(std::span(bytes)), job.epoch);
}

/// The text of each prompt as the model sees it, with the special tokens of its template.
void TextServer::log_prompts(const std::string& request_id, const Encoded& encoded) const {
  for (std::size_t i = 0; i < encoded.prompts.size(); ++i) {
    Detokenizer detokenizer(encoder_.tokenizer(), /*skip_special_tokens=*/false);
    std::string text;
    for (const TokenId id : encoded.prompts[i]) {
      if (static_cast<std::int64_t>(text.size()) > log_.max_value_bytes())
        break;  // the log cuts it and says so
      text += detokenizer.append(id);
    }
    log_.detail("prompt", {kv("req", request_id), kv("prompt", i), kv("text", text + detokenizer.flush())});
  }
}

}  // namespace troupe
