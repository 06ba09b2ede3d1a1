#include "http/server/response_writer.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <utility>

namespace troupe::http {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kSegmentBytes = 64 << 10;
constexpr std::size_t kFileBytes = 256 << 10;  // of a file's body in memory

}  // namespace

std::string& ResponseWriter::tail() {
  if (segments_.back().size() >= kSegmentBytes) segments_.emplace_back();
  return segments_.back();
}

template <class Append>
void ResponseWriter::append(Append append_to) {
  std::string& out = tail();
  const std::size_t before = out.size();
  append_to(out);
  unsent_ += out.size() - before;
}

void ResponseWriter::begin_answer() {
  body_bytes_ = 0;
  in_stream_ = false;
}

void ResponseWriter::append_continue() {
  append([](std::string& out) { out.append("HTTP/1.1 100 Continue\r\n\r\n"); });
}

void ResponseWriter::append_whole(ResponseHead head, Output&& output, bool head_request) {
  std::size_t bytes = output.body.size();
  for (const std::string& part : output.more) bytes += part.size();
  if (output.file != nullptr) bytes = output.file->bytes;
  const bool empty = output.status == 204 || output.status == 304;
  if (empty) head.content_type = {};
  // The length of an event stream, which only HEAD has whole, is not known.
  if (!empty && output.content != Output::Content::events) head.content_length = bytes;
  in_stream_ = false;
  append([&](std::string& out) { append_response_head(out, head, output.headers); });
  if (head_request) return;
  if (output.file != nullptr && bytes > 0) {
    file_ = std::move(output.file);
    file_offset_ = 0;
    body_bytes_ = bytes;
    return;
  }
  const auto put = [this](std::string&& part) {
    if (part.size() < kSegmentBytes) {
      append([&](std::string& out) { out.append(part); });
      return;
    }
    unsent_ += part.size();
    segments_.push_back(std::move(part));
  };
  put(std::move(output.body));
  for (std::string& part : output.more) put(std::move(part));
  body_bytes_ = bytes;
}

void ResponseWriter::begin_stream(ResponseHead head,
                                  const std::vector<std::pair<std::string, std::string>>& headers) {
  head.content_type = "text/event-stream; charset=utf-8";
  head.stream = true;
  chunked_ = head.chunked;
  append([&](std::string& out) { append_response_head(out, head, headers); });
  in_stream_ = true;
  stream_begins_in_ = segments_.size() - 1;
}

void ResponseWriter::append_chunk_of(std::string_view events) {
  append([&](std::string& out) {
    if (chunked_) {
      append_chunk(out, events);
    } else {
      out.append(events);
    }
  });
}

void ResponseWriter::append_events(std::string_view bytes) {
  body_bytes_ += bytes.size();
  while (bytes.size() > kSegmentBytes) {  // as many whole events as fill a segment, but one at least
    constexpr std::string_view kEnd = "\n\n";
    std::size_t end = bytes.rfind(kEnd, kSegmentBytes - kEnd.size());
    if (end == bytes.npos) end = bytes.find(kEnd);
    if (end == bytes.npos) break;
    append_chunk_of(bytes.substr(0, end + kEnd.size()));
    bytes.remove_prefix(end + kEnd.size());
  }
  append_chunk_of(bytes);
}

void ResponseWriter::end_stream() {
  if (chunked_) append([](std::string& out) { out.append(kLastChunk); });
}

bool ResponseWriter::cut_stream(std::string_view events) {
  if (!in_stream_) return false;
  const std::size_t kept = std::max(first_, stream_begins_in_) + 1;
  if (segments_.size() <= kept) return false;
  for (std::size_t i = kept; i < segments_.size(); ++i) unsent_ -= segments_[i].size();
  segments_.resize(kept);
  segments_.emplace_back();
  append_chunk_of(events);
  end_stream();
  in_stream_ = false;
  return true;
}

/// Appends the next bytes of the file. False when there are none; `broken`: though there should be.
bool ResponseWriter::read_file(bool& broken) {
  if (file_ == nullptr) return false;
  std::string chunk(std::min<std::uint64_t>(kFileBytes, file_->bytes - file_offset_), '\0');
  const ssize_t n = ::pread(file_->fd.get(), chunk.data(), chunk.size(), static_cast<off_t>(file_offset_));
  broken = n <= 0;
  if (broken) return false;
  chunk.resize(static_cast<std::size_t>(n));
  file_offset_ += chunk.size();
  unsent_ += chunk.size();
  segments_.push_back(std::move(chunk));
  if (file_offset_ == file_->bytes) file_.reset();
  return true;
}

ResponseWriter::Progress ResponseWriter::write(Transport& transport) {
  bool broken = false;
  while (unsent_ > 0 || read_file(broken)) {
    std::string& segment = segments_[first_];
    if (sent_ == segment.size()) {
      std::string().swap(segment);
      sent_ = 0;
      ++first_;
      continue;
    }
    boost::system::error_code error;
    const std::size_t n = transport.write_some({segment.data() + sent_, segment.size() - sent_}, error);
    if (error == asio::error::interrupted) continue;
    if (error == asio::error::would_block) return Progress::blocked;
    if (error) return Progress::broken;
    sent_ += n;
    unsent_ -= n;
    taken_ += n;
  }
  if (broken) return Progress::broken;
  segments_.resize(1);
  segments_.front().clear();
  first_ = sent_ = stream_begins_in_ = 0;
  return Progress::sent;
}

void ResponseWriter::shrink() {
  constexpr std::size_t kKept = 4 << 10;  // of thousands of idle connections
  if (unsent_ == 0 && segments_.front().capacity() > kKept) std::string().swap(segments_.front());
}

}  // namespace troupe::http
