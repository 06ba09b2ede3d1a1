#pragma once
// A visitor for std::visit made of one lambda for each alternative.

namespace troupe::config {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace troupe::config
