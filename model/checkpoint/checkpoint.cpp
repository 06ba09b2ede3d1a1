#include "model/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "config/json_file.h"

namespace troupe::model {

namespace fs = std::filesystem;

class Checkpoint::Mapping {
 public:
  static Result<std::unique_ptr<Mapping>> make(const fs::path& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      const Code code = errno == ENOENT ? Code::not_found : Code::internal;
      return failure(code,
                     file.string() + (errno == ENOENT
                                          ? " does not exist."
                                          : " cannot be opened: " + std::string(std::strerror(errno)) + "."));
    }
    struct stat info {};
    void* data = MAP_FAILED;
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const int error = errno;
    ::close(fd);
    if (!S_ISREG(info.st_mode)) return invalid(file.string() + " is not a file.");
    if (info.st_size == 0) return invalid(file.string() + " is truncated: it is empty.");
    if (data == MAP_FAILED) {
      return failure(Code::internal, file.string() + " cannot be mapped: " + std::strerror(error) + ".");
    }
    return std::unique_ptr<Mapping>(new Mapping(data, static_cast<std::size_t>(info.st_size)));
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), bytes_}; }

 private:
  Mapping(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  void* const data_;
  const std::size_t bytes_;
};

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Status Checkpoint::add_file(const fs::path& file) {
  Result<std::unique_ptr<Mapping>> mapping = Mapping::make(file);
  if (!mapping) return mapping.status();
  const std::span<const std::byte> bytes = (*mapping)->bytes();
  Result<SafetensorsHeader> header = parse_safetensors(bytes, bytes.size(), file.string());
  if (!header) return header.status();
  for (TensorEntry& entry : header->tensors) {
    if (tensors_.size() == kMaxTensors) {
      return invalid(file.string() + ": the checkpoint has more than " + std::to_string(kMaxTensors) +
                     " tensors.");
    }
    FileTensor tensor{entry.type, std::move(entry.shape), bytes.data() + header->data_at + entry.begin,
                      entry.end - entry.begin};
    data_bytes_ += tensor.bytes;
    const auto [at, added] = tensors_.try_emplace(std::move(entry.name), std::move(tensor));
    if (!added) return invalid(file.string() + ": another shard has the tensor '" + at->first + "' as well.");
  }
  mappings_.push_back(std::move(*mapping));
  return {};
}

Result<Checkpoint> Checkpoint::open_file(const fs::path& file) {
  Checkpoint checkpoint;
  if (Status s = checkpoint.add_file(file); !s.ok()) return s;
  return checkpoint;
}

namespace {

struct Index {
  std::set<std::string> tensors;
  std::set<std::string> shards;
};

// A shard is a file beside its index: a name that leads elsewhere is refused, not resolved.
bool plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name.find("..") == std::string::npos &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

Result<Index> read_index(const fs::path& file) {
  Result<std::string> text = config::read_small_file(file);
  if (!text) return text.status();
  Result<nlohmann::json> json = config::parse_json_object(*text, file.string());
  if (!json) return json.status();
  const auto map = json->find("weight_map");
  if (map == json->end() || !map->is_object() || map->empty()) {
    return invalid(file.string() + " has no weight_map.");
  }
  Index index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>())) {
      return invalid(file.string() + ": the shard of '" + tensor.substr(0, 80) +
                     "' is not a plain file name; '/' and '..' are not allowed.");
    }
    index.tensors.insert(tensor);
    index.shards.insert(shard.get<std::string>());
  }
  if (index.tensors.size() > kMaxTensors || index.shards.size() > kMaxShards) {
    return invalid(file.string() + " names " + std::to_string(index.tensors.size()) + " tensors in " +
                   std::to_string(index.shards.size()) + " shards; at most " + std::to_string(kMaxTensors) +
                   " and " + std::to_string(kMaxShards) + " are allowed.");
  }
  return index;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& directory) {
  const fs::path index_file = directory / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::exists(index_file, error)) {
    const fs::path single = directory / "model.safetensors";
    if (!fs::exists(single, error)) {
      return failure(Code::not_found,
                     directory.string() + " has neither model.safetensors nor model.safetensors.index.json.");
    }
    return open_file(single);
  }
  Result<Index> index = read_index(index_file);
  if (!index) return index.status();
  Checkpoint checkpoint;
  for (const std::string& shard : index->shards) {
    Status s = checkpoint.add_file(directory / shard);
    if (s.code == Code::not_found) {
      return failure(Code::not_found,
                     index_file.string() + " names the shard " + shard + ", which does not exist.");
    }
    if (!s.ok()) return s;
  }
  for (const std::string& tensor : index->tensors) {
    if (checkpoint.find(tensor) == nullptr) {
      return invalid(index_file.string() + " names the tensor '" + tensor +
                     "', which none of its shards has.");
    }
  }
  return checkpoint;
}

const FileTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace troupe::model
