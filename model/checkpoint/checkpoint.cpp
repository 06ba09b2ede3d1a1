#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "config/json_file.h"

namespace troupe::model {

namespace fs = std::filesystem;

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

namespace {

/// The first bytes of the file, its header among them: what parse_safetensors() wants.
std::vector<std::byte> read_header(const ShardFile& file) {
  std::uint64_t length = 0;
  std::vector<std::byte> bytes(std::min<std::size_t>(file.bytes(), sizeof length));
  file.read(0, bytes.data(), bytes.size());
  if (bytes.size() < sizeof length) return bytes;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) return bytes;
  bytes.resize(std::min<std::size_t>(file.bytes(), sizeof length + length));
  file.read(sizeof length, bytes.data() + sizeof length, bytes.size() - sizeof length);
  return bytes;
}

}  // namespace

Status Checkpoint::add_file(const fs::path& path) {
  Result<std::unique_ptr<ShardFile>> file = ShardFile::open(path);
  if (!file) return file.status();
  const std::vector<std::byte> bytes = read_header(**file);
  if (Status s = (*file)->status(); !s.ok()) return s;
  Result<SafetensorsHeader> header = parse_safetensors(bytes, (*file)->bytes(), path.string());
  if (!header) return header.status();
  for (TensorEntry& entry : header->tensors) {
    if (tensors_.size() == kMaxTensors) {
      return invalid(path.string() + ": the checkpoint has more than " + std::to_string(kMaxTensors) +
                     " tensors.");
    }
    FileTensor tensor{entry.type, std::move(entry.shape), file->get(), header->data_at + entry.begin,
                      entry.end - entry.begin};
    data_bytes_ += tensor.bytes;
    const auto [at, added] = tensors_.try_emplace(std::move(entry.name), std::move(tensor));
    if (!added) return invalid(path.string() + ": another shard has the tensor '" + at->first + "' as well.");
  }
  files_.push_back(std::move(*file));
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

// True for the name of a file beside its index. A name that leads elsewhere is refused, not resolved.
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

Result<std::vector<std::byte>> read_tensor(const FileTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  tensor.file->read(tensor.offset, bytes.data(), bytes.size());
  if (Status s = tensor.file->status(); !s.ok()) return s;
  return bytes;
}

}  // namespace troupe::model
