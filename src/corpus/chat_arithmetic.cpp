// corpus/chat_arithmetic.cpp: sums, worked out digit by digit as on paper.
#include <algorithm>

#include "base/cat.h"
#include "corpus/chat_family.h"

namespace tandem {
namespace {

enum class Operation { kPlus, kMinus, kTimes };

struct Numbers {
  std::string key;
  Operation operation;
  int64_t a;
  int64_t b;
};

constexpr std::string_view kPlusForms[] = {"What is {0} plus {1}?",
                                           "{0} + {1} = ?",
                                           "How much is {0} plus {1}?",
                                           "Can you add {0} and {1}?",
                                           "Calculate {0} + {1}.",
                                           "What's the sum of {0} and {1}?",
                                           "Please add {0} to {1}.",
                                           "I have {0} {2}s and get {1} more. How many {2}s do I have now?",
                                           "what is {0}+{1}"};
constexpr std::string_view kMinusForms[] = {"What is {0} minus {1}?",
                                            "{0} - {1} = ?",
                                            "How much is {0} minus {1}?",
                                            "Can you subtract {1} from {0}?",
                                            "Calculate {0} - {1}.",
                                            "Take {1} away from {0}.",
                                            "What is the difference between {0} and {1}?",
                                            "I had {0} {2}s and gave away {1}. How many {2}s are left?",
                                            "what is {0}-{1}"};
constexpr std::string_view kTimesForms[] = {"What is {0} times {1}?",
                                            "{0} × {1} = ?",
                                            "How much is {0} times {1}?",
                                            "Can you multiply {0} by {1}?",
                                            "Calculate {0} * {1}.",
                                            "What is the product of {0} and {1}?",
                                            "There are {0} boxes with {1} {2}s each. How many {2}s are there?",
                                            "what is {0}*{1}"};
constexpr std::string_view kCountable[] = {"apple", "book", "coin", "card", "marble", "stamp", "shell", "pencil"};

int64_t draw_number(ChatDraw& draw) {
  const uint64_t kind = draw.below(10);
  if (kind < 2) return draw.between(0, 9);
  return kind < 9 ? draw.between(10, 99) : draw.between(100, 999);
}

Numbers draw_numbers(ChatDraw& draw) {
  const auto operation = static_cast<Operation>(draw.below(3));
  int64_t a = draw_number(draw);
  int64_t b = draw_number(draw);
  if (operation == Operation::kMinus && a < b) std::swap(a, b);
  if (operation == Operation::kTimes) {
    a = draw.between(2, 99);
    b = draw.chance(75) ? draw.between(2, 9) : draw.between(10, 99);
    if (draw.chance(50)) std::swap(a, b);
  }
  // a + b and b + a are one item: knowing one is knowing the other.
  const bool ordered = operation == Operation::kMinus;
  const std::string_view name = operation == Operation::kPlus ? "add" : ordered ? "subtract" : "multiply";
  return {cat(name, ":", ordered ? a : std::min(a, b), ":", ordered ? b : std::max(a, b)), operation, a, b};
}

constexpr std::string_view kPlaceNames[] = {"Ones", "Tens", "Hundreds", "Thousands"};

// "Ones: 7 + 5 = 12, write 2, carry 1. Tens: 1 + 2 + 1 = 4."
std::string plus_steps(int64_t a, int64_t b, bool brief) {
  std::string out;
  int64_t carry = 0;
  for (size_t place = 0; place < std::size(kPlaceNames) && (place == 0 || a > 0 || b > 0); ++place, a /= 10, b /= 10) {
    const int64_t sum = a % 10 + b % 10 + carry;
    if (!out.empty()) out += brief ? ", " : " ";
    if (!brief) out += cat(kPlaceNames[place], ": ");
    out += cat(a % 10, " + ", b % 10);
    if (carry != 0) out += " + 1";
    out += cat(" = ", sum);
    carry = sum / 10;
    if (brief) continue;
    out += carry != 0 && (a >= 10 || b >= 10) ? cat(", write ", sum % 10, ", carry 1.") : ".";
  }
  return out;
}

std::string minus_steps(int64_t a, int64_t b, bool brief) {
  std::string out;
  int64_t borrow = 0;
  for (size_t place = 0; place < std::size(kPlaceNames) && (place == 0 || a > 0); ++place, a /= 10, b /= 10) {
    const int64_t lent = a % 10 - b % 10 - borrow < 0 ? 10 : 0;
    if (!out.empty()) out += brief ? ", " : " ";
    if (!brief) out += cat(kPlaceNames[place], ": ");
    out += cat(a % 10 + lent, " - ", b % 10);
    if (borrow != 0) out += " - 1";
    out += cat(" = ", a % 10 + lent - b % 10 - borrow);
    borrow = lent / 10;
    if (!brief) out += borrow != 0 ? ", borrow 1." : ".";
  }
  return out;
}

// a × b by the digits of b: "17 × 20 = 340. 17 × 5 = 85. 340 + 85 = 425."
std::string times_steps(int64_t a, int64_t b, bool brief) {
  if (b > 9 && a <= 9) std::swap(a, b);
  const std::string_view stop = brief ? ", " : ". ";
  std::string out;
  if (b <= 9) {
    if (a <= 9) return cat(a, " × ", b, " = ", a * b, brief ? "" : ".");
    const int64_t tens = a / 10 * 10;
    out = cat(tens, " × ", b, " = ", tens * b, stop, a % 10, " × ", b, " = ", a % 10 * b, stop, tens * b, " + ",
              a % 10 * b, " = ", a * b);
  } else {
    const int64_t tens = b / 10 * 10;
    out = cat(a, " × ", tens, " = ", a * tens, stop, a, " × ", b % 10, " = ", b % 10 * a, stop, a * tens, " + ",
              b % 10 * a, " = ", a * b);
  }
  return brief ? out : out + ".";
}

std::string steps(const Numbers& n, bool brief) {
  switch (n.operation) {
    case Operation::kPlus: return plus_steps(n.a, n.b, brief);
    case Operation::kMinus: return minus_steps(n.a, n.b, brief);
    case Operation::kTimes: return times_steps(n.a, n.b, brief);
  }
  return "";
}

std::string check_of(const Numbers& n, int64_t result) {
  switch (n.operation) {
    case Operation::kPlus: return cat("Check: ", result, " - ", n.b, " = ", n.a, ".");
    case Operation::kMinus: return cat("Check: ", result, " + ", n.b, " = ", n.a, ".");
    case Operation::kTimes: return cat("Check: ", n.b, " × ", n.a, " = ", result, ".");
  }
  return "";
}

int64_t result_of(const Numbers& n) {
  switch (n.operation) {
    case Operation::kPlus: return n.a + n.b;
    case Operation::kMinus: return n.a - n.b;
    case Operation::kTimes: return n.a * n.b;
  }
  return 0;
}

std::span<const std::string_view> forms_of(Operation operation) {
  switch (operation) {
    case Operation::kPlus: return kPlusForms;
    case Operation::kMinus: return kMinusForms;
    case Operation::kTimes: return kTimesForms;
  }
  return {};
}

}  // namespace

Sum draw_sum(ChatDraw& draw) {
  const Numbers n = draw.item([&] { return draw_numbers(draw); });
  const std::string a = cat(n.a);
  const std::string b = cat(n.b);
  const int64_t result = result_of(n);
  const std::string_view sign = n.operation == Operation::kPlus ? "+" : n.operation == Operation::kMinus ? "-" : "×";
  const std::string_view word = n.operation == Operation::kPlus    ? "plus"
                                : n.operation == Operation::kMinus ? "minus"
                                                                   : "times";
  Sum sum;
  sum.key = n.key;
  const std::string_view form = draw.pick(forms_of(n.operation));
  sum.question = fill(form, {a, b, draw.pick(kCountable)});
  sum.result = cat(result);
  sum.statement = cat(a, " ", word, " ", b, " is ", result, ".");
  const std::string equation = cat(a, " ", sign, " ", b, " = ", result, ".");
  sum.steps_low = cat(a, " ", sign, " ", b, ": ", steps(n, true), ". So ", result, ".");
  sum.steps_high = cat("I need ", a, " ", sign, " ", b, ". ", steps(n, false), " So ", equation);
  sum.steps_max = cat(sum.steps_high, " ", check_of(n, result));
  return sum;
}

void make_arithmetic(ChatContext& context, ChatExample& example) {
  const Sum sum = draw_sum(context.draw);
  example.request.messages.push_back(user_message(sum.question));
  example.reply = assistant_message(context.think(sum.steps_low, sum.steps_high, sum.steps_max), sum.statement);
  example.answer = cat("is ", sum.result, ".");
}

}  // namespace tandem
