#include "actors/remote/node_facts.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/hex.h"
#include "ipc/memory_file.h"

namespace troupe::remote {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "model's configuration";
constexpr const char* kVocabulary = "model's vocabulary";
constexpr const char* kWeights = "model's weights";

constexpr const char* kRole = "--splitwise-role";

/// Of each file of weights its name, its size, its first bytes and its last ones are looked at: tensors'
/// names and places, and some numbers. The whole may take minutes to read.
constexpr std::size_t kLooked = 64 << 10;

/// SHA-256 of something that is read piece by piece.
class Digest {
 public:
  Digest() : state_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr);
  }

  void add(std::string_view bytes) { EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()); }

  /// As many digits as tell one from another. Once.
  std::string take() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(state_.get(), bytes.data(), &size);
    return to_hex(std::span(bytes).first(8));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state_;
};

std::string read_piece(std::ifstream& in, std::uint64_t from) {
  std::string piece(kLooked, '\0');
  in.clear();
  in.seekg(static_cast<std::streamoff>(from));
  in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
  piece.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return piece;
}

/// "" without weights.
std::string weights_digest(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.empty()) return "";
  std::sort(files.begin(), files.end());
  Digest digest;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary | std::ios::ate);
    const std::streamoff end = in.tellg();
    const std::uint64_t size = end < 0 ? 0 : static_cast<std::uint64_t>(end);
    digest.add(file.filename().string() + " " + std::to_string(size) + "\n");
    digest.add(read_piece(in, 0));
    digest.add(read_piece(in, size > kLooked ? size - kLooked : 0));
  }
  return digest.take();
}

}  // namespace

Result<supervisor::PeerFacts> node_facts(const config::Options& options, int vocabulary_fd) {
  supervisor::PeerFacts facts = supervisor::facts_across_machines(options);
  facts[kRole] = to_string(options.split.role);
  const fs::path directory(options.model.directory);
  std::ifstream in(directory / options.model.model_config_name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  Digest configuration;
  configuration.add(text);
  facts[kConfig] = configuration.take();
  const auto vocabulary = ipc::map_constant_file(vocabulary_fd);
  if (!vocabulary.ok()) return vocabulary.status();
  Digest tokens;
  tokens.add({reinterpret_cast<const char*>(vocabulary->bytes.data()), vocabulary->bytes.size()});
  facts[kVocabulary] = tokens.take();
  // Random weights follow from the seed, which is a fact of its own.
  if (options.model.load_choices == config::LoadChoice::dummy) return facts;
  if (std::string weights = weights_digest(directory); !weights.empty()) facts[kWeights] = std::move(weights);
  return facts;
}

bool is_decode_instance(const supervisor::PeerFacts& front) {
  const auto role = front.find(kRole);
  return role != front.end() && role->second == to_string(config::SplitRole::decode);
}

std::string node_difference(supervisor::PeerFacts engine, const std::string& engine_name,
                            supervisor::PeerFacts front, const std::string& front_name) {
  if (!engine.contains(kWeights) || !front.contains(kWeights)) {
    engine.erase(kWeights);
    front.erase(kWeights);
  }
  if (is_decode_instance(front) && engine[kRole] != to_string(config::SplitRole::prefill)) {
    return engine_name + " computes no prompts for others, as " + front_name +
           " needs it to: it does not have --splitwise-role prefill";
  }
  for (supervisor::PeerFacts* facts : {&engine, &front}) facts->erase(kRole);
  return supervisor::difference({engine, engine_name}, {front, front_name});
}

}  // namespace troupe::remote
