#include "actors/media/media_book.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>

#include "http/api/json_body.h"
#include "ipc/patch_region.h"
#include "media/messages.h"

namespace troupe {
namespace {

/// Of an entry; the oldest goes when there is one more.
constexpr std::size_t kMostNames = 64;

/// Of files that are fetched, each: above most pictures that are on the web.
constexpr std::uint64_t kLikelyBytes = 4u << 20;

/// Bytes that base64 of this length has at most.
std::uint64_t bytes_of(std::string_view base64) { return (base64.size() + 3) / 4 * 3; }

/// Bytes of the files that the source brings along, at most.
std::uint64_t most_bytes(const http::MediaSource& source) {
  std::uint64_t bytes = bytes_of(source.file);
  for (const std::string& frame : source.frames) bytes += bytes_of(frame);
  return bytes;
}

template <class Word>
std::span<const std::byte> as_bytes_of(const Word& words) {
  return std::as_bytes(std::span(words));
}

Status at_field(const std::string& param, Status status) {
  status.message = param + " " + status.message;
  status.param = param;
  return status;
}

Status too_large(const std::string& what, std::uint64_t bytes, std::uint64_t most) {
  return invalid("the request's images have " + std::to_string(bytes) + " bytes of " + what +
                     ": allowed are " + std::to_string(most) +
                     ", a part of --media-memory; send fewer or smaller images",
                 {}, "media_too_large");
}

Status full(const char* what) {
  return {Code::overloaded,
          std::string("the memory for the ") + what +
              " of images (--media-memory) is in use by other requests: try again later",
          {},
          "media_memory_full"};
}

}  // namespace

// ---------------------------------------------------------------------------------------- measure

void MediaBook::measure(MeasureMedia&& from, std::int64_t now_ns, MediaEffects& effects) {
  const MediaRequestId id{from.io, from.exchange};
  const auto at = requests_.emplace(id, Request()).first;
  Request& request = at->second;
  request.salt = siphash(key_, std::as_bytes(std::span(from.salt)));
  request.waits_since_ns = now_ns;
  std::uint64_t bytes = 0;
  for (http::MediaSource& source : from.items) {
    const std::string param = source.param;
    bytes += most_bytes(source);
    if (!source.url.empty()) request.likely_bytes += std::min(kLikelyBytes, bounds_.most_file_bytes);
    if (Status status = take_item(request, from, std::move(source)); !status.ok())
      return refuse_measure(at, at_field(param, std::move(status)), effects);
  }
  if (bytes > bounds_.file_bytes) {
    return refuse_measure(at, too_large("files", bytes, bounds_.file_bytes), effects);
  }
  request.unmeasured = static_cast<std::size_t>(std::count_if(request.items.begin(), request.items.end(),
                                                              [](const Item& item) { return !item.entry; }));
  request.file_bytes = bytes;
  request.likely_bytes = std::min({request.likely_bytes, bounds_.file_bytes / 4, bounds_.file_bytes - bytes});
  if (request.unmeasured == 0) return finish_measuring(at, effects);
  for_files_.push_back(id);
  admit(effects);
  refuse_waiting(for_files_, now_ns - bounds_.longest_wait_ns, effects);
}

Status MediaBook::take_item(Request& request, const MeasureMedia& from, http::MediaSource&& source) {
  Item item;
  if (!source.name.empty()) item.name = name_of(from, source);
  if (!source.url.empty() && !bounds_.why_not_fetched.empty()) {
    return invalid("is a URL that this server does not fetch: \"" + http::cut(source.url) + "\"; " +
                       bounds_.why_not_fetched + "; send the bytes as a data: URL",
                   {}, "url_not_allowed");
  }
  if (source.file.empty() && source.frames.empty() && source.url.empty()) {
    if (source.name.empty()) return invalid("has neither data nor a uuid", {}, "invalid_image");
    const auto known = by_name_.find(item.name);
    if (known == by_name_.end()) {
      return invalid("has no data, and its uuid \"" + http::cut(source.name) + "\" is not that of " +
                         (source.kind == MediaKind::video ? "a video" : "an image") +
                         " which this key has sent and the server still has: send the data again",
                     {}, "unknown_uuid");
    }
    item.entry = known->second;
    use(*item.entry);
  }
  // The reader of its header has the exact number; this saves decoding base64.
  if (most_bytes(source) > bounds_.most_file_bytes + 2) {
    return invalid("is a file of " + std::to_string(most_bytes(source)) + " bytes: allowed are " +
                       std::to_string(bounds_.most_file_bytes) + " (--max-media-bytes)",
                   {}, "image_too_large");
  }
  item.source = std::move(source);
  request.items.push_back(std::move(item));
  return {};
}

/// Of a name among those of its client, salt and kind.
BlockHash MediaBook::name_of(const MeasureMedia& from, const http::MediaSource& source) const {
  const auto hash = [this](const std::string& text) { return siphash(key_, std::as_bytes(std::span(text))); };
  const std::array<BlockHash, 4> parts{hash(from.client), hash(from.salt), hash(source.name),
                                       BlockHash{static_cast<std::uint64_t>(source.kind), 0}};
  return siphash(key_, as_bytes_of(parts));
}

/// Of an entry: a salt keeps those of other salts away, as it does with KV blocks.
BlockHash MediaBook::key_of(const Request& request, const BlockHash& file,
                            const http::MediaSource& source) const {
  const media::SamplingWords sampling =
      source.kind == MediaKind::video ? media::words_of(source.sampling) : media::SamplingWords{};
  const auto both = [](std::int32_t high, std::int32_t low) {
    return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
  };
  const std::array<std::uint64_t, 10> parts{request.salt.hi,
                                            request.salt.lo,
                                            file.hi,
                                            file.lo,
                                            static_cast<std::uint64_t>(source.kind),
                                            static_cast<std::uint64_t>(source.limits.min_pixels),
                                            static_cast<std::uint64_t>(source.limits.max_pixels),
                                            static_cast<std::uint64_t>(sampling.fps_millionths),
                                            both(sampling.min_frames, sampling.max_frames),
                                            both(sampling.target_frames, sampling.choice)};
  return siphash(key_, as_bytes_of(parts));
}

void MediaBook::begin_measuring(Requests::iterator at, MediaEffects& effects) {
  auto& [id, request] = *at;
  file_bytes_ += request.file_bytes;
  for (std::size_t i = 0; i < request.items.size(); ++i) {
    Item& item = request.items[i];
    if (item.entry) continue;
    const std::uint64_t ticket = next_ticket_++;
    measuring_.emplace(ticket, Measuring{id, i, most_bytes(item.source), !item.source.url.empty()});
    http::MediaSource kept;
    kept.kind = item.source.kind;
    kept.limits = item.source.limits;
    kept.sampling = item.source.sampling;
    kept.param = item.source.param;
    effects.measure.push_back({ticket, std::exchange(item.source, std::move(kept)), id});
  }
}

void MediaBook::measured(std::uint64_t ticket, MeasuredFile&& file, MediaEffects& effects) {
  const auto work = measuring_.extract(ticket);
  if (work.empty()) return;  // its request has ended
  const Measuring& measuring = work.mapped();
  const auto at = requests_.find(measuring.request);
  Request& request = at->second;
  Item& item = request.items[measuring.item];
  request.file_bytes -= measuring.bytes;
  file_bytes_ -= measuring.bytes;
  Status status = file.status.ok() ? Status() : at_field(item.source.param, std::move(file.status));
  if (status.ok() && measuring.is_fetched)
    status = take_fetched(request, file, by_key_.contains(key_of(request, file.contents, item.source)));
  if (!status.ok()) {
    if (status.param.empty()) status.param = item.source.param;
    refuse_measure(at, std::move(status), effects);
    return admit(effects);
  }
  item.entry = enter(request, item.source, std::move(file));
  use(*item.entry);
  if (item.name != BlockHash()) give_name(*item.entry, item.name);
  if (--request.unmeasured == 0) finish_measuring(at, effects);
  admit(effects);
}

/// Whether there is room for the file behind a URL.
Status MediaBook::take_fetched(Request& request, const MeasuredFile& file, bool is_known) {
  request.fetched_bytes += file.bytes;
  if (request.fetched_bytes > bounds_.file_bytes)
    return too_large("files", request.fetched_bytes, bounds_.file_bytes);
  return is_known || file_bytes_ + file.bytes <= bounds_.file_bytes ? Status() : full("files");
}

void MediaBook::finish_measuring(Requests::iterator at, MediaEffects& effects) {
  auto& [id, request] = *at;
  MeasuredMedia answer;
  for (const Item& item : request.items)
    answer.items.push_back({item.source.kind, entries_.at(*item.entry).grid});
  request.wants_measured = false;
  effects.measured.push_back({id, std::move(answer)});
}

void MediaBook::refuse_measure(Requests::iterator at, Status status, MediaEffects& effects) {
  if (status.param.empty()) status.param = at->second.items.front().source.param;
  if (status.code == Code::overloaded) ++refused_;
  effects.measured.push_back({at->first, {std::move(status), {}}});
  forget(at, effects);
}

// ---------------------------------------------------------------------------------------- prepare

void MediaBook::prepare(const MediaRequestId& id, std::int64_t now_ns, MediaEffects& effects) {
  const auto at = requests_.find(id);
  if (at == requests_.end() || at->second.wants_measured) {
    effects.ready.push_back({id, {failure(Code::internal, "images were not measured"), {}}, 0});
    return;
  }
  Request& request = at->second;
  request.wants_ready = true;
  request.waits_since_ns = now_ns;
  if (const std::uint64_t bytes = wanted_patches(request, /*all=*/true); bytes > bounds_.patch_bytes)
    return refuse_prepare(at, too_large("pixels", bytes, bounds_.patch_bytes), effects);
  for_patches_.push_back(id);
  admit(effects);
  refuse_waiting(for_patches_, now_ns - bounds_.longest_wait_ns, effects);
}

/// Bytes in the region of the request's entries: of all, or of those that have no room there yet.
std::uint64_t MediaBook::wanted_patches(const Request& request, bool all) const {
  std::uint64_t bytes = 0;
  std::set<EntryId> seen;
  for (const Item& item : request.items) {
    const Entry& entry = entries_.at(*item.entry);
    if (seen.insert(*item.entry).second && (all || entry.patch_bytes == 0))
      bytes += ipc::PatchRegion::bytes_of(entry.grid);
  }
  return bytes;
}

/// There is room for its patches.
void MediaBook::begin_preparing(Requests::iterator at, MediaEffects& effects) {
  auto& [id, request] = *at;
  for (const Item& item : request.items) {
    Entry& entry = entries_.at(*item.entry);
    if (entry.state == Entry::State::ready) continue;
    ++request.decoded;
    if (entry.state != Entry::State::measured) continue;
    entry.state = Entry::State::in_work;
    entry.patch_bytes = ipc::PatchRegion::bytes_of(entry.grid);
    patch_bytes_ += entry.patch_bytes;
    entry.work.request = id;
    ++request.begun;
    ++misses_;
    ++in_work_[entry.work.is_video_file() ? 1 : 0];
    effects.prepare.push_back(entry.work);
  }
  finish_preparing(at, effects);
}

void MediaBook::prepared(std::uint64_t ticket, PreparedPatches&& patches, MediaEffects& effects) {
  const auto found = entries_.find(ticket);
  if (found == entries_.end()) {  // cannot be; but the place must not stay
    if (patches.status.ok()) effects.remove.push_back(patches.place);
    return;
  }
  Entry& entry = found->second;
  if (patches.status.code == Code::cancelled && entry.uses > 0) {  // wanted again since
    const auto user = std::find_if(requests_.begin(), requests_.end(), [&](const auto& request) {
      const auto& items = request.second.items;
      return std::any_of(items.begin(), items.end(), [&](const Item& item) { return item.entry == ticket; });
    });
    entry.work.request = user == requests_.end() ? MediaRequestId() : user->first;
    effects.prepare.push_back(entry.work);
    return;
  }
  --in_work_[entry.work.is_video_file() ? 1 : 0];
  file_bytes_ -= std::exchange(entry.file_bytes, 0);
  entry.work.files.clear();
  if (patches.status.ok()) {
    entry.state = Entry::State::ready;
    entry.contents = patches.contents;
    entry.place = patches.place;
  } else {
    patch_bytes_ -= std::exchange(entry.patch_bytes, 0);
    entry.state = Entry::State::failed;
    entry.failure = std::move(patches.status);
    by_key_.erase(entry.key);  // the next one with it is decoded anew
    for (const BlockHash& name : std::exchange(entry.names, {})) by_name_.erase(name);
  }
  if (entry.uses == 0) {
    ++entry.uses;
    leave(ticket, effects);
  }
  std::vector<MediaRequestId> wanting;
  for (const auto& [id, request] : requests_) {
    const auto is_it = [&](const Item& item) { return item.entry == ticket; };
    if (request.wants_ready && std::any_of(request.items.begin(), request.items.end(), is_it))
      wanting.push_back(id);
  }
  for (const MediaRequestId& id : wanting) finish_preparing(requests_.find(id), effects);
  admit(effects);
}

/// Answers when every entry is ready, or one has failed.
void MediaBook::finish_preparing(Requests::iterator at, MediaEffects& effects) {
  auto& [id, request] = *at;
  MediaReady answer;
  bool complete = true;
  for (const Item& item : request.items) {
    const Entry& entry = entries_.at(*item.entry);
    if (entry.state == Entry::State::failed)
      return refuse_prepare(at, at_field(item.source.param, entry.failure), effects);
    complete = complete && entry.state == Entry::State::ready;
    answer.items.push_back({item.source.kind, entry.grid, entry.contents, entry.place});
  }
  if (!complete) return;
  request.wants_ready = false;
  hits_ += static_cast<std::int64_t>(request.items.size() - request.begun);
  std::erase(for_patches_, id);  // others have brought all that it waits for
  effects.ready.push_back({id, std::move(answer), request.decoded});
}

void MediaBook::refuse_prepare(Requests::iterator at, Status status, MediaEffects& effects) {
  if (status.param.empty()) status.param = at->second.items.front().source.param;
  if (status.code == Code::overloaded) ++refused_;
  effects.ready.push_back({at->first, {std::move(status), {}}, at->second.decoded});
  forget(at, effects);
}

MediaStats MediaBook::stats() const {
  const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  MediaStats stats;
  stats.file_bytes = number(file_bytes_);
  stats.file_limit = number(bounds_.file_bytes);
  stats.patch_bytes = number(patch_bytes_);
  stats.patch_limit = number(bounds_.patch_bytes);
  stats.cached_bytes = number(cached_bytes_);
  stats.cached_limit = number(bounds_.cached_bytes);
  stats.cached_entries = number(unused_.size());
  stats.hits = hits_;
  stats.misses = misses_;
  stats.requests_waiting = static_cast<std::int32_t>(for_files_.size() + for_patches_.size());
  stats.refused = refused_;
  return stats;
}

// ------------------------------------------------------------------------------------------- room

/// Lets requests in, in order, as far as there is room.
void MediaBook::admit(MediaEffects& effects) {
  while (!for_patches_.empty()) {
    const auto at = requests_.find(for_patches_.front());
    const std::uint64_t bytes = wanted_patches(at->second, /*all=*/false);
    if (patch_bytes_ - cached_bytes_ + bytes > bounds_.patch_bytes) break;
    for_patches_.pop_front();
    if (patch_bytes_ + bytes > bounds_.patch_bytes)
      trim(cached_bytes_ - (patch_bytes_ + bytes - bounds_.patch_bytes), effects);
    begin_preparing(at, effects);
  }
  while (!for_files_.empty()) {
    const auto at = requests_.find(for_files_.front());
    if (file_bytes_ + at->second.file_bytes + at->second.likely_bytes > bounds_.file_bytes) break;
    for_files_.pop_front();
    begin_measuring(at, effects);
  }
}

void MediaBook::refuse_late(std::int64_t now_ns, MediaEffects& effects) {
  refuse_waiting(for_files_, now_ns - bounds_.longest_wait_ns, effects);
  refuse_waiting(for_patches_, now_ns - bounds_.longest_wait_ns, effects);
}

/// Refuses who waits since then or longer, and, of too many, the last.
void MediaBook::refuse_waiting(std::deque<MediaRequestId>& queue, std::int64_t since_ns,
                               MediaEffects& effects) {
  std::vector<MediaRequestId> refused;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    if (i >= bounds_.most_waiting || requests_.find(queue[i])->second.waits_since_ns <= since_ns)
      refused.push_back(queue[i]);
  }
  for (const MediaRequestId& id : refused) {
    const auto at = requests_.find(id);
    const bool files = &queue == &for_files_;
    files ? refuse_measure(at, full("files"), effects) : refuse_prepare(at, full("pixels"), effects);
  }
  if (!refused.empty()) admit(effects);
}

// ---------------------------------------------------------------------------------------- entries

/// The entry of a file that was measured, which may be known.
MediaBook::EntryId MediaBook::enter(const Request& request, const http::MediaSource& source,
                                    MeasuredFile&& file) {
  const BlockHash key = key_of(request, file.contents, source);
  if (const auto known = by_key_.find(key); known != by_key_.end()) return known->second;
  const EntryId id = next_ticket_++;
  Entry& entry = entries_[id];
  entry.key = key;
  entry.grid = file.grid;
  entry.work = {id, {}, source.kind, std::move(file.files), file.video, source.limits, source.sampling};
  entry.file_bytes = file.bytes;
  file_bytes_ += file.bytes;
  by_key_.emplace(key, id);
  return id;
}

/// The name leads to this entry from now on.
void MediaBook::give_name(EntryId id, const BlockHash& name) {
  const auto [known, is_new] = by_name_.emplace(name, id);
  if (!is_new) {
    if (known->second == id) return;
    std::erase(entries_.at(known->second).names, name);
    known->second = id;
  }
  std::vector<BlockHash>& names = entries_.at(id).names;
  names.push_back(name);
  if (names.size() <= kMostNames) return;
  by_name_.erase(names.front());
  names.erase(names.begin());
}

void MediaBook::use(EntryId id) {
  Entry& entry = entries_.at(id);
  if (entry.uses++ > 0 || entry.state != Entry::State::ready) return;
  unused_.erase(entry.unused);
  cached_bytes_ -= entry.patch_bytes;
}

/// An item of a request that has ended leaves the entry.
void MediaBook::leave(EntryId id, MediaEffects& effects) {
  Entry& entry = entries_.at(id);
  if (--entry.uses > 0) return;
  switch (entry.state) {
    case Entry::State::in_work: effects.drop.push_back(id); return;
    case Entry::State::ready:
      unused_.push_front(id);
      entry.unused = unused_.begin();
      cached_bytes_ += entry.patch_bytes;
      return trim(bounds_.cached_bytes, effects);
    case Entry::State::measured:
    case Entry::State::failed: return erase(id, effects);
  }
}

void MediaBook::erase(EntryId id, MediaEffects& effects) {
  const auto node = entries_.extract(id);
  const Entry& entry = node.mapped();
  if (entry.state == Entry::State::ready) effects.remove.push_back(entry.place);
  file_bytes_ -= entry.file_bytes;
  patch_bytes_ -= entry.patch_bytes;
  for (const BlockHash& name : entry.names) by_name_.erase(name);
  if (const auto known = by_key_.find(entry.key); known != by_key_.end() && known->second == id)
    by_key_.erase(known);
}

/// Of the entries without a use, leaves at most so many bytes in the region.
void MediaBook::trim(std::uint64_t most, MediaEffects& effects) {
  while (cached_bytes_ > most) {
    const EntryId oldest = unused_.back();
    unused_.pop_back();
    cached_bytes_ -= entries_.at(oldest).patch_bytes;
    erase(oldest, effects);
  }
}

void MediaBook::release(const MediaRequestId& id, MediaEffects& effects) {
  const auto at = requests_.find(id);
  if (at == requests_.end()) return;
  forget(at, effects);
  admit(effects);
}

void MediaBook::forget(Requests::iterator at, MediaEffects& effects) {
  const auto node = requests_.extract(at);
  const auto& [id, request] = std::pair<const MediaRequestId&, const Request&>(node.key(), node.mapped());
  const auto waiting = std::find(for_files_.begin(), for_files_.end(), id);
  if (waiting != for_files_.end()) {
    for_files_.erase(waiting);
  } else {
    file_bytes_ -= request.file_bytes;  // of files that are being measured
  }
  std::erase(for_patches_, id);
  std::erase_if(measuring_, [&](const auto& work) {
    if (work.second.request != id) return false;
    effects.drop.push_back(work.first);
    return true;
  });
  for (const Item& item : request.items) {
    if (item.entry) leave(*item.entry, effects);
  }
}

}  // namespace troupe
