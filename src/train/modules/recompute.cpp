#include "train/modules/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

namespace tandem::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The function, and the roles of the weights behind x in the list of inputs.
struct Recipe : torch::CustomClassHolder {
  Sublayer sublayer;
  std::vector<TensorRole> roles;

  at::Tensor run(const variable_list& inputs) const {
    LayerParameters weights;
    for (size_t i = 0; i < roles.size(); ++i) weights[roles[i]] = inputs[i + 1];
    return sublayer(inputs[0], weights);
  }
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<Recipe>& recipe, at::TensorList inputs) {
    ctx->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    ctx->save_for_backward(inputs.vec());
    return recipe->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list output_gradient) {
    const auto capsule = ctx->saved_data["recipe"].toCapsule();
    const auto& recipe = static_cast<const Recipe&>(*capsule);
    variable_list inputs, differentiated;
    std::vector<size_t> places;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
      if (!saved.requires_grad()) continue;
      differentiated.push_back(inputs.back());
      places.push_back(inputs.size());  // behind the gradient of the recipe, which has none
    }
    const c10::AutoGradMode with_gradient(true);
    const at::Tensor out = recipe.run(inputs);
    const variable_list gradients = torch::autograd::grad({out}, differentiated, output_gradient,
                                                          /*retain_graph=*/false, /*create_graph=*/false,
                                                          /*allow_unused=*/true);
    variable_list all(inputs.size() + 1);
    for (size_t i = 0; i < places.size(); ++i) all[places[i]] = gradients[i];
    return all;
  }
};

}  // namespace

at::Tensor recompute(Sublayer sublayer, const at::Tensor& x, const LayerParameters& weights) {
  auto recipe = c10::make_intrusive<Recipe>();
  recipe->sublayer = std::move(sublayer);
  variable_list inputs = {x};
  for (int role = 0; role < static_cast<int>(TensorRole::kNotRun); ++role) {
    const at::Tensor& weight = weights[static_cast<TensorRole>(role)];
    if (!weight.defined()) continue;
    recipe->roles.push_back(static_cast<TensorRole>(role));
    inputs.push_back(weight);
  }
  return Recompute::apply(recipe, at::TensorList(inputs));
}

}  // namespace tandem::train
