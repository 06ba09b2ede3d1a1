#pragma once
#include "gpu/ceilings.h"
