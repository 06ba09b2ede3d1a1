#pragma once
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace troupe::grammar {

/// The thoughts at the begin of an answer, and their limit.
struct ThinkingRule {
  TokenId end = -1;             ///< the token that ends them; -1: there are none
  bool open = false;            ///< the answer begins inside of them; false: it has none
  std::int32_t budget = -1;     ///< tokens after which `forced` follows; -1: no limit
  std::vector<TokenId> forced;  ///< ends with `end`
  std::vector<TokenId> denied;  ///< ascending; may not come before `end`, unless forced
};

}  // namespace troupe::grammar
