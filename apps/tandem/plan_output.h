// apps/tandem/plan_output.h: the two forms of a ModelPlan: lines for a person, one document for a program.
#pragma once

#include <string>

#include "cost/model_plan.h"

namespace tandem::app {

std::string plan_text(const ModelPlan& plan);
std::string compare_text(const ModelPlan& plan);  // of plan.comparison
std::string plan_json(const ModelPlan& plan);     // with the comparison, if there is one; times are seconds

// 1560860324864 as "1.56 TB", 549756813888 FLOP/s as "550 GFLOP/s": three digits, decimal units.
std::string amount_text(double amount, std::string_view unit);
std::string seconds_text(double seconds);  // "1.84 ms"

}  // namespace tandem::app
