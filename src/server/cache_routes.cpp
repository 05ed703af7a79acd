#include "server/routes.h"
namespace tandem {
void explain_cache(RouteCall) {}
void lint_cache(RouteCall) {}
}  // namespace tandem
