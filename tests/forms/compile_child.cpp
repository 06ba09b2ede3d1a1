// The process that compiles forms, with its true limits, as a program of its own.
#include <string>
#include <vector>

#include "actors/grammar/compile_process.h"

int main(int argc, char** argv) {
  return troupe::compile_main(std::vector<std::string>(argv + 1, argv + argc));
}
