#include <c10/util/Half.h>

static_assert(__cplusplus >= 202002L);
static_assert(sizeof(c10::Half) == 2);
