// The process for forms, with its true limits, as a program of its own.
#include <string>
#include <vector>

#include "actors/grammar/form_worker.h"

int main(int argc, char** argv) { return troupe::form_main(std::vector<std::string>(argv + 1, argv + argc)); }
