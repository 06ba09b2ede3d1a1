#include "text/tokenizer/bpe.h"

#include <algorithm>

#include "base/utf8.h"

namespace troupe {
namespace {

std::uint64_t pair_of(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// Fibonacci hashing of the combined pair.
std::size_t slot_of(std::uint64_t pair, std::size_t mask) {
  pair ^= pair >> 29;
  return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ull) >> 24) & mask;
}

}  // namespace

BytePairEncoder::BytePairEncoder(Options options)
    : options_(std::move(options)), table_(1024, Merge{kEmpty, 0, 0}) {}

const BytePairEncoder::Merge* BytePairEncoder::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t at = slot_of(pair, mask); table_[at].pair != kEmpty; at = (at + 1) & mask) {
    if (table_[at].pair == pair) return &table_[at];
  }
  return nullptr;
}

void BytePairEncoder::grow() {
  std::vector<Merge> old(table_.size() * 2, Merge{kEmpty, 0, 0});
  old.swap(table_);
  for (const Merge& merge : old) {
    if (merge.pair == kEmpty) continue;
    std::size_t at = slot_of(merge.pair, table_.size() - 1);
    while (table_[at].pair != kEmpty) at = (at + 1) & (table_.size() - 1);
    table_[at] = merge;
  }
}

void BytePairEncoder::add_merge(TokenId left, TokenId right, TokenId merged) {
  const std::uint32_t rank = merges_++;
  if (find(left, right)) return;
  if (merges_ * 2 > table_.size()) grow();
  std::size_t at = slot_of(pair_of(left, right), table_.size() - 1);
  while (table_[at].pair != kEmpty) at = (at + 1) & (table_.size() - 1);
  table_[at] = {pair_of(left, right), rank, merged};
}

void BytePairEncoder::first_symbols(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  symbols.clear();
  auto add = [&](TokenId id) {
    if (id < 0) return;
    if (options_.fuse_unknown && id == options_.unknown && !symbols.empty() && symbols.back().id == id)
      return;
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  auto add_bytes = [&](std::string_view bytes) {
    const bool all = std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
      return options_.byte_ids[static_cast<unsigned char>(byte)] >= 0;
    });
    if (!all) return add(options_.unknown);
    for (char byte : bytes) add(options_.byte_ids[static_cast<unsigned char>(byte)]);
  };
  if (options_.byte_level) {
    for (std::size_t i = 0; i < word.size(); ++i) add_bytes(word.substr(i, 1));
  } else {
    std::string character;
    for (std::size_t at = 0; at < word.size();) {
      character = word.substr(at, static_cast<std::size_t>(utf8::decode(word, at).bytes));
      const auto known = options_.characters.find(character);
      known != options_.characters.end() ? add(known->second) : add_bytes(character);
      at += character.size();
    }
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void BytePairEncoder::merge(Scratch& scratch) const {
  using Candidate = Scratch::Candidate;
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  auto candidate = [&](std::int32_t at) -> bool {
    const std::int32_t next = symbols[static_cast<std::size_t>(at)].next;
    if (next < 0) return false;
    const TokenId left = symbols[static_cast<std::size_t>(at)].id;
    const TokenId right = symbols[static_cast<std::size_t>(next)].id;
    const Merge* merge = find(left, right);
    if (merge) heap.push_back({merge->rank, at, right, left});
    return merge != nullptr;
  };
  for (std::size_t at = 0; at < symbols.size(); ++at) candidate(static_cast<std::int32_t>(at));
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(top.at)];
    if (left.id != top.left || left.next < 0) continue;  // already merged; a removed symbol's id is -1
    const auto& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = find(top.left, top.right)->merged;
    symbols[static_cast<std::size_t>(left.next)].id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.at;
    if (candidate(top.at)) std::push_heap(heap.begin(), heap.end(), later);
    if (left.previous >= 0 && candidate(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
  }
}

void BytePairEncoder::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (word.empty() || cache_->find(word, out)) return;
  const std::size_t before = out.size();
  const auto whole = options_.whole_words.empty() ? options_.whole_words.end()
                                                  : options_.whole_words.find(std::string(word));
  if (whole != options_.whole_words.end()) {
    out.push_back(whole->second);
  } else {
    first_symbols(word, scratch.symbols);
    merge(scratch);
    for (std::int32_t at = scratch.symbols.empty() ? -1 : 0; at >= 0;
         at = scratch.symbols[static_cast<std::size_t>(at)].next) {
      out.push_back(scratch.symbols[static_cast<std::size_t>(at)].id);
    }
  }
  cache_->put(word, out.data() + before, out.size() - before);
}

}  // namespace troupe
