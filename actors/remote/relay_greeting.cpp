#include "actors/remote/relay_greeting.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "base/json.h"

namespace troupe::remote {
namespace {

constexpr std::size_t kLongestName = 100;
constexpr std::size_t kLongestRefusal = 1000;
constexpr std::size_t kMostFacts = 100;
constexpr std::int64_t kMostRanks = 1 << 20;

/// What another machine has said, to be shown: cut, and without control characters.
std::string shown(std::string text, std::size_t most) {
  if (text.size() > most) text.resize(most);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

std::string_view text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()};
}

std::vector<std::byte> frame_of(FrameKind kind, const std::string& text) {
  std::vector<std::byte> out;
  put_frame(out, kind, std::as_bytes(std::span(text)).first(std::min(text.size(), kMostGreetingBytes)));
  return out;
}

std::vector<std::byte> frame_of(FrameKind kind, const RelayGreeting& greeting) {
  Json facts = Json::object();
  for (const auto& [name, value] : greeting.facts) facts[name] = value;
  Json members{{"node", greeting.node}, {"facts", facts}, {"server", greeting.server}};
  if (greeting.kv)
    members["kv"] = {{"rank", greeting.kv->rank},
                     {"ranks", greeting.kv->ranks},
                     {"block_bytes", greeting.kv->block_bytes}};
  return frame_of(kind, json::to_text(members));
}

std::optional<RelayGreeting> read_greeting(std::string_view text) {
  const auto value = json::parse(text);
  const Json* facts = value ? json::member(*value, "facts") : nullptr;
  const std::string* node = value ? json::text(json::member(*value, "node")) : nullptr;
  if (facts == nullptr || node == nullptr) return std::nullopt;
  RelayGreeting greeting{shown(*node, kLongestName), {}, {}};
  if (const Json* part = json::member(*value, "kv")) {
    const auto number = [part](const char* name) {
      const Json* const value = json::member(*part, name);
      return value == nullptr ? std::nullopt : json::integer(*value);
    };
    const auto rank = number("rank"), ranks = number("ranks"), bytes = number("block_bytes");
    if (!rank || !ranks || !bytes || *rank < 0 || *rank >= *ranks || *ranks > kMostRanks || *bytes < 0)
      return std::nullopt;
    greeting.kv = KvPart{static_cast<std::int32_t>(*rank), static_cast<std::int32_t>(*ranks),
                         static_cast<std::uint64_t>(*bytes)};
  }
  if (const std::string* server = json::text(json::member(*value, "server")))
    greeting.server = shown(*server, kLongestName);
  for (const auto& [name, one] : json::members(*facts)) {
    const std::string* fact = json::text(one);
    if (fact == nullptr || greeting.facts.size() == kMostFacts) return std::nullopt;
    greeting.facts.emplace(name, *fact);
  }
  return greeting;
}

/// The next frame, which is one of the greeting's.
Result<Frame> await_frame(Stream& stream, FrameReader& reader, TimePoint deadline,
                          const std::stop_token& stop) {
  Frame frame;
  for (;;) {
    switch (reader.next(/*greets=*/true, frame)) {
      case FrameReader::Got::frame: return frame;
      case FrameReader::Got::bad: return failure(Code::invalid_argument, "has sent what is no greeting");
      case FrameReader::Got::nothing: break;
    }
    std::size_t count = 0;
    switch (stream.read(reader.room(), count, std::min(deadline, Clock::now() + kStopLook))) {
      case Stream::Progress::done: reader.filled(count); break;
      case Stream::Progress::late:
        if (stop.stop_requested() || Clock::now() >= deadline)
          return failure(Code::timeout, "did not answer within 3 s");
        break;
      case Stream::Progress::failed:
        return failure(Code::unavailable,
                       (stream.established() ? "has ended the connection at its beginning ("
                                             : "is no node of this cluster (") +
                           stream.error() + ")");
    }
  }
}

}  // namespace

Result<RelayGreeting> greet(Stream& stream, FrameReader& reader, const RelayGreeting& own, TimePoint deadline,
                            const std::stop_token& stop) {
  // A failed write is explained by what is read next.
  (void)stream.write(frame_of(FrameKind::greeting, own), deadline, stop);
  const auto frame = await_frame(stream, reader, deadline, stop);
  if (!frame.ok()) return frame.status();
  if (frame->kind == FrameKind::refusal)
    return failure(Code::forbidden, shown(std::string(text_of(*frame)), kLongestRefusal));
  auto answer = frame->kind == FrameKind::welcome ? read_greeting(text_of(*frame)) : std::nullopt;
  if (!answer) return failure(Code::invalid_argument, "has sent what is no greeting");
  return *std::move(answer);
}

Result<RelayGreeting> await_greeting(Stream& stream, FrameReader& reader, TimePoint deadline,
                                     const std::stop_token& stop) {
  const auto frame = await_frame(stream, reader, deadline, stop);
  if (!frame.ok()) return frame.status();
  auto greeting = frame->kind == FrameKind::greeting ? read_greeting(text_of(*frame)) : std::nullopt;
  if (!greeting) return failure(Code::invalid_argument, "has sent what is no greeting");
  return *std::move(greeting);
}

bool welcome(Stream& stream, const RelayGreeting& own, TimePoint deadline, const std::stop_token& stop) {
  return stream.write(frame_of(FrameKind::welcome, own), deadline, stop) == Stream::Progress::done;
}

void refuse(Stream& stream, const std::string& why, TimePoint deadline, const std::stop_token& stop) {
  (void)stream.write(frame_of(FrameKind::refusal, why), deadline, stop);
}

}  // namespace troupe::remote
