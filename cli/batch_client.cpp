#include "cli/batch_client.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/file_writes.h"
#include "base/owned_fd.h"
#include "http/batch/batch_line.h"
#include "http/batch/batch_store.h"
#include "http/batch/line_files.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kMostLine = 64 << 20;
constexpr std::size_t kPieceBytes = 1 << 20;

Status disk_failure(const std::string& path) {
  return failure(Code::unavailable, path + ": " + std::strerror(errno));
}

std::string whole_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The URL of the first request that has one.
std::string endpoint_of(const std::string& path) {
  auto reader = http::LineReader::open(path, kMostLine);
  while (auto line = reader.ok() ? reader->next() : std::nullopt) {
    const http::BatchLine request = http::read_batch_line(line->text, {});
    if (request.route != nullptr) return std::string(request.route->path);
  }
  return "/v1/chat/completions";
}

std::string member_text(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A line of one of the files with answers and errors.
struct Place {
  std::uint64_t line = 0;  ///< of the request
  std::size_t file = 0;
  off_t offset = 0;
  std::size_t bytes = 0;  ///< with the newline
};

/// Appends the places of the lines of a file.
Status find_lines(const std::string& path, std::size_t file, const std::string& batch,
                  std::vector<Place>& places) {
  std::ifstream in(path, std::ios::binary);
  off_t offset = 0;
  for (std::string text; std::getline(in, text); offset += static_cast<off_t>(text.size()) + 1)
    places.push_back({http::line_of_result(batch, text), file, offset, text.size() + 1});
  return in.eof() ? Status() : disk_failure(path);
}

Status append(int fd, std::string_view bytes, const std::string& path) {
  return write_all(fd, bytes) == bytes.size() ? Status() : disk_failure(path);
}

Status copy_lines(const std::vector<Place>& places, const std::array<OwnedFd, 2>& files, int out,
                  const std::string& path) {
  std::string pending;
  for (const Place& place : places) {
    const std::size_t before = pending.size();
    pending.resize(before + place.bytes);
    const int from = files[place.file].get();
    if (::pread(from, pending.data() + before, place.bytes, place.offset) !=
        static_cast<ssize_t>(place.bytes))
      return disk_failure(path);
    if (pending.size() < kPieceBytes) continue;
    if (Status status = append(out, pending, path); !status.ok()) return status;
    pending.clear();
  }
  return append(out, pending, path);
}

}  // namespace

BatchTicket read_ticket(const std::string& path) {
  const auto text = nlohmann::json::parse(whole_text(path), nullptr, /*allow_exceptions=*/false);
  if (!text.is_object()) return {};
  return {member_text(text, "server"), member_text(text, "input"), member_text(text, "batch")};
}

Status write_ticket(const std::string& path, const BatchTicket& ticket) {
  const nlohmann::json text = {{"server", ticket.server}, {"input", ticket.input}, {"batch", ticket.batch}};
  return replace_file(path, text.dump()) ? Status() : disk_failure(path);
}

Result<std::string> name_of_version(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) {
    return failure(Code::not_found, path + " is no file that can be read");
  }
  return std::to_string(found.st_size) + "-" + std::to_string(found.st_mtim.tv_sec) + "." +
         std::to_string(found.st_mtim.tv_nsec);
}

bool BatchProgress::ended() const {
  return status == "completed" || status == "failed" || status == "expired" || status == "cancelled";
}

/// The body of an answer of 200.
Result<std::string> BatchClient::ask(const std::string& method, const std::string& target,
                                     const std::string& body) {
  auto answer = client_.request(method, target, body);
  if (!answer.ok()) return answer.status();
  if (answer->status == 200) return std::move(answer->body);
  return failure(answer->status == 404 ? Code::not_found : Code::unavailable, http::error_message(*answer));
}

Result<std::string> BatchClient::begin(const std::string& path) {
  const std::string boundary = http::BatchStore::fresh_id("troupe-");
  std::string form = "--" + boundary +
                     "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--" + boundary +
                     "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"requests.jsonl\"\r\n"
                     "Content-Type: application/jsonl\r\n\r\n";
  form += whole_text(path);
  form += "\r\n--" + boundary + "--\r\n";
  auto sent = client_.post("/v1/files", "multipart/form-data; boundary=" + boundary, form);
  if (!sent.ok()) return sent.status();
  const auto file = nlohmann::json::parse(sent->body, nullptr, /*allow_exceptions=*/false);
  if (sent->status != 200 || !file.is_object()) return failure(Code::unavailable, http::error_message(*sent));
  const nlohmann::json order = {{"input_file_id", member_text(file, "id")},
                                {"endpoint", endpoint_of(path)},
                                {"completion_window", "24h"}};
  const auto created = ask("POST", "/v1/batches", order.dump());
  if (!created.ok()) return created.status();
  const auto batch = nlohmann::json::parse(*created, nullptr, /*allow_exceptions=*/false);
  return batch.is_object() ? member_text(batch, "id") : std::string();
}

Result<BatchProgress> BatchClient::progress(const std::string& batch) {
  const auto answer = ask("GET", "/v1/batches/" + batch, {});
  if (!answer.ok()) return answer.status();
  const auto object = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return failure(Code::internal, "the server's answer is no batch");
  BatchProgress out;
  out.status = member_text(object, "status");
  out.results = member_text(object, "output_file_id");
  out.faults = member_text(object, "error_file_id");
  if (const auto counts = object.find("request_counts"); counts != object.end() && counts->is_object()) {
    const auto count = [&](const char* name) {
      const auto found = counts->find(name);
      return found != counts->end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
    };
    out.total = count("total");
    out.completed = count("completed");
    out.failed = count("failed");
  }
  const auto errors = object.find("errors");
  if (errors != object.end() && errors->is_object()) {
    const auto data = errors->find("data");
    if (data != errors->end() && data->is_array() && !data->empty() && data->front().is_object())
      out.error = member_text(data->front(), "message");
  }
  return out;
}

Status BatchClient::save(const std::string& file, const std::string& path) {
  const OwnedFd out(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!out) return disk_failure(path);
  if (file.empty()) return {};
  const auto answer = client_.download("/v1/files/" + file + "/content", [&](std::string_view bytes) {
    return append(out.get(), bytes, path);
  });
  if (!answer.ok()) return answer.status();
  if (answer->status != 200) return failure(Code::unavailable, http::error_message(*answer));
  return {};
}

Status BatchClient::fetch(const std::string& batch, const BatchProgress& ended, const std::string& path) {
  const std::array<std::string, 2> parts{path + ".answers", path + ".errors"};
  std::vector<Place> places;
  std::array<OwnedFd, 2> files;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (Status status = save(i == 0 ? ended.results : ended.faults, parts[i]); !status.ok()) return status;
    if (Status status = find_lines(parts[i], i, batch, places); !status.ok()) return status;
    files[i].reset(::open(parts[i].c_str(), O_RDONLY | O_CLOEXEC));
    if (!files[i]) return disk_failure(parts[i]);
  }
  std::ranges::stable_sort(places, {}, &Place::line);
  const std::string beside = path + ".new";
  const OwnedFd out(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!out) return disk_failure(beside);
  if (Status status = copy_lines(places, files, out.get(), beside); !status.ok()) return status;
  if (::fsync(out.get()) != 0 || ::rename(beside.c_str(), path.c_str()) != 0) return disk_failure(path);
  for (const std::string& part : parts) ::unlink(part.c_str());
  return {};
}

}  // namespace troupe::cli
