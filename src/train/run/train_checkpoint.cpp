#include "train/run/train_checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/cat.h"
#include "base/read_file.h"
#include "corpus/stable_random.h"
#include "train/run/run_folder.h"
#include "weights/atomic_file.h"

namespace tandem::train {
namespace {

using nlohmann::json;
using TensorDict = c10::Dict<std::string, at::Tensor>;

void hash_tensors(const NamedTensors& tensors, StreamHash& hash) {
  for (const auto& [name, tensor] : tensors) {
    hash.append(name.data(), name.size());
    hash.append(tensor.data_ptr(), static_cast<size_t>(tensor.nbytes()));
  }
}

// Of the counters and every tensor.
std::string content_hash(const json& meta, const TrainCheckpoint& checkpoint) {
  StreamHash hash;
  const std::string counters = meta.dump();
  hash.append(counters.data(), counters.size());
  hash_tensors(checkpoint.parameters, hash);
  hash_tensors(checkpoint.optimizer, hash);
  hash_tensors(checkpoint.balancer, hash);
  return cat(hash.value());
}

json meta_of(const TrainState& state) {
  return {{"step", state.step},
          {"num_optimizer_steps", state.num_optimizer_steps},
          {"seconds", state.seconds},
          {"recent_losses", state.recent_losses},
          {"identity", state.identity}};
}

c10::IValue dict_of(const NamedTensors& tensors) {
  TensorDict dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  return dict;
}

at::Tensor host_copy(const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); }

// Throws where the archive is not what save_checkpoint() writes.
NamedTensors tensors_of(const c10::IValue& dict) {
  NamedTensors tensors;
  for (const auto& entry : dict.toGenericDict()) {
    tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor().contiguous());
  }
  return tensors;
}

TrainCheckpoint parse_archive(const std::string& bytes) {
  const c10::IValue root = torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
  const auto fields = root.toGenericDict();
  TrainCheckpoint checkpoint;
  checkpoint.parameters = tensors_of(fields.at("parameters"));
  checkpoint.optimizer = tensors_of(fields.at("optimizer"));
  checkpoint.balancer = tensors_of(fields.at("balancer"));
  json meta = json::parse(fields.at("meta").toStringRef());
  const std::string hash = meta.at("hash");
  meta.erase("hash");
  TrainState& state = checkpoint.state;
  meta.at("step").get_to(state.step);
  meta.at("num_optimizer_steps").get_to(state.num_optimizer_steps);
  meta.at("seconds").get_to(state.seconds);
  meta.at("recent_losses").get_to(state.recent_losses);
  meta.at("identity").get_to(state.identity);
  if (content_hash(meta, checkpoint) != hash) throw std::runtime_error("its content does not match its hash");
  return checkpoint;
}

Status copy_values(const std::string& path, const NamedTensors& from, const NamedTensors& to) {
  const c10::NoGradGuard no_grad;
  if (from.size() != to.size()) {
    return Status::invalid(cat(path, ": expected ", to.size(), " tensors of this model, found ", from.size()));
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (from[i].first != to[i].first || from[i].second.sizes() != to[i].second.sizes()) {
      return Status::invalid(cat(path, ": expected ", to[i].first, " with ", to[i].second.numel(), " values, found ",
                                 from[i].first, " with ", from[i].second.numel()));
    }
  }
  for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i].second.detach()).copy_(from[i].second);
  return Status::ok();
}

NamedTensors parameters_of(const TrainModel& model) {
  NamedTensors tensors;
  for (const Parameter& parameter : model.parameters()) tensors.emplace_back(parameter.name, parameter.value);
  return tensors;
}

}  // namespace

Status save_checkpoint(const std::string& path, const TrainState& state, const TrainModel& model,
                       const Optimizer& optimizer, const RouterBalancer& balancer) {
  TrainCheckpoint checkpoint;
  for (const auto& [name, tensor] : parameters_of(model)) checkpoint.parameters.emplace_back(name, host_copy(tensor));
  for (const auto& [name, tensor] : optimizer.state()) checkpoint.optimizer.emplace_back(name, host_copy(tensor));
  for (const auto& [name, tensor] : balancer.state()) checkpoint.balancer.emplace_back(name, host_copy(tensor));
  json meta = meta_of(state);
  meta["hash"] = content_hash(meta, checkpoint);
  std::vector<char> bytes;
  try {
    c10::impl::GenericDict fields(c10::StringType::get(), c10::AnyType::get());
    fields.insert("meta", meta.dump());
    fields.insert("parameters", dict_of(checkpoint.parameters));
    fields.insert("optimizer", dict_of(checkpoint.optimizer));
    fields.insert("balancer", dict_of(checkpoint.balancer));
    bytes = torch::jit::pickle_save(fields);
  } catch (const std::exception& error) {
    return Status::exhausted(cat(path, ": cannot make the checkpoint: ", error.what()));
  }
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.is_ok()) return file.status();
  TANDEM_RETURN_IF_ERROR(file.value().reserve(bytes.size()));
  TANDEM_RETURN_IF_ERROR(file.value().write_at(0, std::as_bytes(std::span(bytes))));
  return file.value().publish();
}

Result<TrainCheckpoint> read_checkpoint(const std::string& path) {
  const Result<std::string> bytes = read_file(path, "a training checkpoint");
  if (!bytes.is_ok()) return bytes.status();
  try {
    TrainCheckpoint checkpoint = parse_archive(bytes.value());
    checkpoint.path = path;
    return checkpoint;
  } catch (const std::exception& error) {
    const std::string_view reason = error.what();
    return Status::invalid(cat(
        path, ": expected a complete training checkpoint, found a damaged one: ", reason.substr(0, reason.find('\n'))));
  }
}

Result<TrainCheckpoint> read_newest_checkpoint(const std::string& run_dir,
                                               const std::function<void(const std::string&)>& warn) {
  const std::vector<int64_t> steps = list_checkpoints(run_dir);
  for (size_t i = steps.size(); i-- > 0;) {
    Result<TrainCheckpoint> checkpoint = read_checkpoint(checkpoint_path(run_dir, steps[i]));
    if (checkpoint.is_ok() || checkpoint.status().code() != StatusCode::kInvalidArgument) return checkpoint;
    warn(checkpoint.status().message());
  }
  return Status::not_found(
      cat(run_dir, ": expected a training checkpoint, found ", steps.empty() ? "none" : "damaged ones only"));
}

Status restore_parameters(const TrainCheckpoint& checkpoint, TrainModel& model) {
  return copy_values(checkpoint.path, checkpoint.parameters, parameters_of(model));
}

Status restore_optimizer(const TrainCheckpoint& checkpoint, Optimizer& optimizer) {
  TANDEM_RETURN_IF_ERROR(copy_values(checkpoint.path, checkpoint.optimizer, optimizer.state()));
  optimizer.set_num_steps(checkpoint.state.num_optimizer_steps);
  return Status::ok();
}

Status restore_balancer(const TrainCheckpoint& checkpoint, RouterBalancer& balancer) {
  return copy_values(checkpoint.path, checkpoint.balancer, balancer.state());
}

Result<TrainModel> load_run_model(const std::string& run_dir, std::optional<int64_t> step, at::Device device) {
  const Result<ModelConfig> config = load_model_config(run_dir);
  if (!config.is_ok()) return config.status();
  const Result<TrainCheckpoint> checkpoint = step ? read_checkpoint(checkpoint_path(run_dir, *step))
                                                  : read_newest_checkpoint(run_dir, [](const std::string&) {});
  if (!checkpoint.is_ok()) return checkpoint.status();
  TrainModel model = TrainModel::random(config.value(), 0, InitStyle::kTraining, at::kFloat, device);
  TANDEM_RETURN_IF_ERROR(restore_parameters(checkpoint.value(), model));
  return model;
}

}  // namespace tandem::train
