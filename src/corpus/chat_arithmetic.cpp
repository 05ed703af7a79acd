// corpus/chat_arithmetic.cpp: sums, worked out digit by digit as on paper.
//
//   Every step is something that a small model can know or copy: a sum, difference or product of digits with a carry,
//   or "so far", the digits written until then with the new one in front. A product of two-digit numbers is two
//   products with a digit and one addition.
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

// {0} and {1}: the numbers, {2}: a thing, {3}: a name.
constexpr std::string_view kPlusForms[] = {"What is {0} plus {1}?",
                                           "what is {0} plus {1}",
                                           "What's {0} plus {1}?",
                                           "{0} + {1} = ?",
                                           "{0} + {1}",
                                           "{0}+{1}",
                                           "{0} plus {1}",
                                           "What is {0} + {1}?",
                                           "what is {0}+{1}",
                                           "whats {0} + {1}?",
                                           "How much is {0} plus {1}?",
                                           "How much is {0} + {1}?",
                                           "Can you add {0} and {1}?",
                                           "Add {0} and {1}.",
                                           "Calculate {0} + {1}.",
                                           "Compute {0} + {1}",
                                           "What's the sum of {0} and {1}?",
                                           "What is the sum of {0} and {1}?",
                                           "Please add {0} to {1}.",
                                           "Please calculate {0} plus {1}.",
                                           "Tell me what {0} plus {1} is.",
                                           "What do you get when you add {0} and {1}?",
                                           "I have {0} {2}s and get {1} more. How many {2}s do I have now?",
                                           "{3} has {0} {2}s and buys {1} more. How many {2}s does {3} have?",
                                           "There are {0} {2}s here and {1} {2}s there. How many are there together?"};
constexpr std::string_view kMinusForms[] = {"What is {0} minus {1}?",
                                            "what is {0} minus {1}",
                                            "What's {0} minus {1}?",
                                            "{0} - {1} = ?",
                                            "{0} - {1}",
                                            "{0}-{1}",
                                            "{0} minus {1}",
                                            "What is {0} - {1}?",
                                            "what is {0}-{1}",
                                            "whats {0} - {1}?",
                                            "How much is {0} minus {1}?",
                                            "How much is {0} - {1}?",
                                            "Can you subtract {1} from {0}?",
                                            "Subtract {1} from {0}.",
                                            "Calculate {0} - {1}.",
                                            "Compute {0} - {1}",
                                            "Take {1} away from {0}.",
                                            "Please calculate {0} minus {1}.",
                                            "Tell me what {0} minus {1} is.",
                                            "What is left when you take {1} from {0}?",
                                            "What is the difference between {0} and {1}?",
                                            "I had {0} {2}s and gave away {1}. How many {2}s are left?",
                                            "{3} had {0} {2}s and lost {1}. How many {2}s does {3} have now?"};
constexpr size_t kNumSignedMinusForms = 13;  // of kMinusForms: those that may give a number below zero
constexpr std::string_view kTimesForms[] = {"What is {0} times {1}?",
                                            "what is {0} times {1}",
                                            "What's {0} times {1}?",
                                            "{0} × {1} = ?",
                                            "{0} × {1}",
                                            "{0} * {1}",
                                            "{0}*{1}",
                                            "{0} x {1}",
                                            "{0} times {1}",
                                            "What is {0} × {1}?",
                                            "What is {0} * {1}?",
                                            "what is {0}*{1}",
                                            "What is {0} x {1}?",
                                            "How much is {0} times {1}?",
                                            "How much is {0} × {1}?",
                                            "Can you multiply {0} by {1}?",
                                            "Multiply {0} by {1}.",
                                            "Multiply {0} and {1}.",
                                            "Calculate {0} * {1}.",
                                            "Calculate {0} × {1}.",
                                            "Compute {0} * {1}",
                                            "Please calculate {0} times {1}.",
                                            "Tell me what {0} times {1} is.",
                                            "What is the product of {0} and {1}?",
                                            "There are {0} boxes with {1} {2}s each. How many {2}s are there?",
                                            "{3} packs {0} bags with {1} {2}s each. How many {2}s is that?"};
constexpr std::string_view kCountable[] = {"apple", "book",   "coin",   "card", "marble", "stamp",
                                           "shell", "pencil", "button", "cup",  "ticket", "flower"};

int64_t draw_number(ChatDraw& draw) {
  const uint64_t kind = draw.below(20);
  if (kind < 3) return draw.between(0, 9);
  return kind < 18 ? draw.between(10, 99) : draw.between(100, 999);
}

Numbers draw_numbers(ChatDraw& draw) {
  const uint64_t kind = draw.below(10);
  const Operation operation = kind < 3   ? Operation::kPlus
                              : kind < 6 ? Operation::kMinus
                                         : Operation::kTimes;  // the longest to learn
  int64_t a = draw_number(draw);
  int64_t b = draw_number(draw);
  if (operation == Operation::kMinus && a < b && !draw.chance(12)) std::swap(a, b);
  if (operation == Operation::kTimes) {
    const bool short_one = draw.chance(35);
    a = short_one && draw.chance(40) ? draw.between(0, 9) : draw.between(10, 99);
    b = short_one ? draw.between(2, 9) : draw.between(10, 99);
    if (draw.chance(50)) std::swap(a, b);
  }
  // a + b and b + a are one item: knowing one is knowing the other.
  const bool ordered = operation == Operation::kMinus;
  const std::string_view name = operation == Operation::kPlus ? "add" : ordered ? "subtract" : "multiply";
  return {cat(name, ":", ordered ? a : std::min(a, b), ":", ordered ? b : std::max(a, b)), operation, a, b};
}

constexpr std::string_view kPlaceNames[] = {"Ones", "Tens", "Hundreds", "Thousands"};

// "Ones: 7 + 5 = 12, carry 1, so far 2. Tens: 1 + 2 + 1 = 4, so far 42."
std::string plus_steps(int64_t a, int64_t b) {
  if (a <= 9 && b <= 9) return cat(a, " + ", b, " = ", a + b, ".");
  std::string out;
  std::string written;
  int64_t carry = 0;
  for (size_t place = 0; a > 0 || b > 0; ++place, a /= 10, b /= 10) {
    const int64_t sum = a % 10 + b % 10 + carry;
    out += cat(place == 0 ? "" : " ", kPlaceNames[place], ": ", a % 10, " + ", b % 10);
    if (carry != 0) out += " + 1";
    out += cat(" = ", sum);
    const bool is_last = a <= 9 && b <= 9;
    carry = is_last ? 0 : sum / 10;
    written.insert(0, cat(is_last ? sum : sum % 10));
    if (carry != 0) out += ", carry 1";
    out += cat(", so far ", written, ".");
  }
  return out;
}

// a >= b.
std::string minus_steps(int64_t a, int64_t b) {
  if (a <= 9 && b <= 9) return cat(a, " - ", b, " = ", a - b, ".");
  std::string out;
  std::string written;
  int64_t borrow = 0;
  for (size_t place = 0; a > 0; ++place, a /= 10, b /= 10) {
    const int64_t lent = a % 10 - b % 10 - borrow < 0 ? 10 : 0;
    const int64_t digit = a % 10 + lent - b % 10 - borrow;
    out += cat(place == 0 ? "" : " ", kPlaceNames[place], ": ", a % 10 + lent, " - ", b % 10);
    if (borrow != 0) out += " - 1";
    out += cat(" = ", digit);
    borrow = lent / 10;
    if (borrow != 0) out += ", borrow 1";
    written.insert(0, cat(digit));
    out += cat(", so far ", written, ".");
  }
  return out;
}

// a × one digit: "7 × 6 = 42, carry 4, so far 2. 4 × 6 = 24, 24 + 4 = 28, so far 282."
std::string digit_steps(int64_t a, int64_t digit) {
  if (a <= 9) return cat(a, " × ", digit, " = ", a * digit, ".");
  std::string out;
  std::string written;
  int64_t carry = 0;
  for (size_t place = 0; a > 0; ++place, a /= 10) {
    const int64_t product = a % 10 * digit;
    const int64_t sum = product + carry;
    out += cat(place == 0 ? "" : " ", a % 10, " × ", digit, " = ", product);
    if (carry != 0) out += cat(", ", product, " + ", carry, " = ", sum);
    const bool is_last = a <= 9;
    carry = is_last ? 0 : sum / 10;
    written.insert(0, cat(is_last ? sum : sum % 10));
    if (carry != 0) out += cat(", carry ", carry);
    out += cat(", so far ", written, ".");
  }
  return out;
}

std::string times_steps(int64_t a, int64_t b) {
  if (b > 9 && a <= 9) std::swap(a, b);
  if (b <= 9) return digit_steps(a, b);
  const int64_t ones = a * (b % 10);
  const int64_t tens = a * (b / 10);
  return cat(a, " × ", b % 10, ": ", digit_steps(a, b % 10), " ", a, " × ", b / 10, ": ", digit_steps(a, b / 10), " ",
             tens * 10, " + ", ones, ": ", plus_steps(tens * 10, ones));
}

std::string steps(const Numbers& n) {
  switch (n.operation) {
    case Operation::kPlus: return plus_steps(n.a, n.b);
    case Operation::kMinus:
      if (n.a >= n.b) return minus_steps(n.a, n.b);
      return cat(n.a, " is less than ", n.b, ", so the result is below zero. ", n.b, " - ", n.a, ": ",
                 minus_steps(n.b, n.a));
    case Operation::kTimes: return times_steps(n.a, n.b);
  }
  return "";
}

// A second look that only repeats the numbers.
std::string check_of(const Numbers& n, int64_t result) {
  switch (n.operation) {
    case Operation::kPlus: return cat(" Check: ", result, " - ", n.b, " = ", n.a, ".");
    case Operation::kMinus: return cat(" Check: ", result, " + ", n.b, " = ", n.a, ".");
    case Operation::kTimes: return cat(" Check: ", n.b, " × ", n.a, " = ", result, ".");
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

std::span<const std::string_view> forms_of(const Numbers& n) {
  switch (n.operation) {
    case Operation::kPlus: return kPlusForms;
    case Operation::kMinus:
      return n.a < n.b ? std::span(kMinusForms).first(kNumSignedMinusForms) : std::span(kMinusForms);
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
  const std::string_view form = draw.pick(forms_of(n));
  const std::string_view thing = draw.pick(kCountable);
  sum.question = fill(form, {a, b, thing, draw.pick(kNames)});
  sum.result = cat(result);
  sum.statement = cat(a, " ", word, " ", b, " is ", result, ".");
  const std::string work = steps(n);
  const std::string conclusion = cat(" So ", a, " ", sign, " ", b, " = ", result, ".");
  sum.steps_low = cat(a, " ", sign, " ", b, ". ", work, conclusion);
  sum.steps_high = cat("I need ", a, " ", sign, " ", b, ". ", work, conclusion);
  sum.steps_max = cat(sum.steps_high, check_of(n, result));
  if (n.a > 9 || n.b > 9 || n.a < n.b) sum.steps_aloud = work;
  return sum;
}

Message sum_reply(const ChatContext& context, const Sum& sum) {
  const bool aloud = !context.effort && !sum.steps_aloud.empty();
  return assistant_message(context.think(sum.steps_low, sum.steps_high, sum.steps_max),
                           aloud ? cat(sum.steps_aloud, " So ", sum.statement) : sum.statement);
}

void make_arithmetic(ChatContext& context, ChatExample& example) {
  const Sum sum = draw_sum(context.draw);
  example.request.messages.push_back(user_message(sum.question));
  example.reply = sum_reply(context, sum);
  example.answer = cat("is ", sum.result, ".");
}

}  // namespace tandem
