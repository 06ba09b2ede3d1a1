// `troupe fetch` by itself.
#include "fetch/fetch_main.h"

int main(int argc, char** argv) { return troupe::fetch::fetch_main({argv + 2, argv + argc}); }
