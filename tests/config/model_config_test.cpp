// config.json: every field, default and refusal, by changing one value of a golden configuration at a time.
#include "config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/golden.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json golden_config(const std::string& model) {
  return json::parse(test::read_text(test::data_path("golden/" + model + "/config.json")));
}

Result<ModelConfig> parse(const json& document) { return parse_model_config(document.dump(), "config.json"); }

ModelConfig must_parse(const json& document) {
  auto config = parse(document);
  EXPECT_TRUE(config.is_ok()) << config.status().message();
  return config.is_ok() ? std::move(config).value() : ModelConfig{};
}

// What a case changes: the value at a JSON pointer, or (removed) its absence.
struct Change {
  std::string pointer;
  json value;
  bool removed = false;
};
Change set(std::string pointer, json value) { return {std::move(pointer), std::move(value), false}; }
Change drop(std::string pointer) { return {std::move(pointer), nullptr, true}; }

void apply(json& document, const Change& change) {
  const json::json_pointer pointer(change.pointer);
  if (change.removed) {
    document[pointer.parent_pointer()].erase(pointer.back());
  } else {
    document[pointer] = change.value;
  }
}

json changed(const std::string& model, const std::vector<Change>& changes) {
  json document = golden_config(model);
  for (const Change& change : changes) apply(document, change);
  return document;
}

// ---------------------------------------------------------------------------------------------------------- refusals

struct Refusal {
  std::string name;
  std::vector<Change> changes;
  std::vector<std::string> says;  // fragments of the message
  std::string model = "k3-tiny";
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Refusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refusals, NameTheFieldWhatWasExpectedAndWhatWasFound) {
  const auto config = parse(changed(GetParam().model, GetParam().changes));
  ASSERT_FALSE(config.is_ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  const std::string& message = config.status().message();
  EXPECT_THAT(message, HasSubstr("config.json: "));
  for (const std::string& fragment : GetParam().says) EXPECT_THAT(message, HasSubstr(fragment));
}

const std::string kText = "/text_config/";
const std::string kLinear = "/text_config/linear_attn_config/";
const std::string kVision = "/vision_config/";
const std::string kGroup = "/text_config/quantization_config/config_groups/group_0/";

std::string test_name(const ::testing::TestParamInfo<Refusal>& param) { return param.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Family, Refusals,
    ::testing::Values(
        Refusal{"NoArchitecture", {drop("/architectures")}, {"architectures: expected [\"KimiK3", "found nothing"}},
        Refusal{"OtherArchitecture", {set("/architectures", {"LlamaForCausalLM"})}, {"found [\"LlamaForCausalLM\"]"}},
        Refusal{"ArchitectureOfAnotherType", {set("/architectures", 7)}, {"architectures: ", "found 7"}},
        Refusal{
            "OtherModelType", {set("/model_type", "kimi_k2")}, {"model_type: expected \"kimi_k3\", found \"kimi_k2\""}},
        Refusal{"NoTextConfig", {drop("/text_config")}, {"text_config: expected an object", "found nothing"}},
        Refusal{"TextConfigOfAnotherType", {set("/text_config", 3)}, {"text_config: expected an object, found 3"}},
        Refusal{"FlatK3",
                {set("/architectures", {"KimiK3ForConditionalGeneration"}), set("/model_type", "kimi_k3")},
                {"text_config: expected an object", "text fields at the top level"},
                "kimi-linear-tiny"},
        Refusal{"NestedKimiLinear",
                {set("/architectures", {"KimiLinearForCausalLM"}), set("/model_type", "kimi_linear")},
                {"text_config: expected nothing", "found an object"}},
        Refusal{"InnerArchitecture",
                {set(kText + "architectures", {"KimiK2"})},
                {"text_config.architectures: expected [\"KimiLinearForCausalLM\"]"}},
        Refusal{
            "InnerModelType", {set(kText + "model_type", "x")}, {"text_config.model_type: expected \"kimi_linear\""}},
        Refusal{
            "VisionInKimiLinear", {set("/vision_config", json::object())}, {"vision_config: "}, "kimi-linear-tiny"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Layers, Refusals,
    ::testing::Values(
        Refusal{"NoKdaLayers", {drop(kLinear + "kda_layers")}, {"linear_attn_config.kda_layers: ", "found nothing"}},
        Refusal{"NoFullAttnLayers", {drop(kLinear + "full_attn_layers")}, {"full_attn_layers: ", "found nothing"}},
        Refusal{"Overlap", {set(kLinear + "full_attn_layers", {4, 7, 8, 9})}, {"layer 7 in both lists"}},
        Refusal{"LayerZero", {set(kLinear + "kda_layers", {0, 1, 2, 3, 5, 6, 7})}, {"from 1 to 9", "layer 0"}},
        Refusal{"LayerBeyondTheLast", {set(kLinear + "full_attn_layers", {4, 8, 9, 10})}, {"from 1 to 9", "layer 10"}},
        Refusal{"NegativeLayer", {set(kLinear + "full_attn_layers", {4, 8, 9, -3})}, {"layer -3"}},
        Refusal{"Repeated", {set(kLinear + "full_attn_layers", {4, 8, 9, 9})}, {"each once", "layer 9 again"}},
        Refusal{"NotAPartition", {set(kLinear + "full_attn_layers", {4, 8})}, {"layer 9 in neither"}},
        Refusal{"NotNumbers", {set(kLinear + "kda_layers", {1, "2"})}, {"kda_layers", "found \"2\" at position 1"}},
        Refusal{"NotAList", {set(kLinear + "kda_layers", 5)}, {"kda_layers", "found 5"}},
        Refusal{"NoKdaHeads", {drop(kLinear + "num_heads")}, {"linear_attn_config.num_heads: ", "found nothing"}},
        Refusal{"NoKdaHeadDim", {drop(kLinear + "head_dim")}, {"linear_attn_config.head_dim: ", "found nothing"}},
        Refusal{"NoConvWidth", {drop(kLinear + "short_conv_kernel_size")}, {"short_conv_kernel_size", "found nothing"}},
        Refusal{"ConvWidthZero", {set(kLinear + "short_conv_kernel_size", 0)}, {"short_conv_kernel_size", "found 0"}},
        Refusal{"BoundPositive", {set(kLinear + "gate_lower_bound", 1.0)}, {"gate_lower_bound", "found 1.0"}},
        Refusal{"BoundZero", {set(kLinear + "gate_lower_bound", 0)}, {"gate_lower_bound", "found 0"}},
        Refusal{"BoundBelow", {set(kLinear + "gate_lower_bound", -5.5)}, {"from -5 to below 0", "found -5.5"}},
        Refusal{"BoundText", {set(kLinear + "gate_lower_bound", "-5")}, {"gate_lower_bound", "finite number"}},
        Refusal{"LinearConfigOfAnotherType", {set(kText + "linear_attn_config", "yes")}, {"linear_attn_config: "}},
        Refusal{"MoreValueHeads", {set(kLinear + "num_v_heads", 8)}, {"num_v_heads: ", "num_heads = 4", "found 8"}},
        Refusal{"FewerKvHeads", {set(kLinear + "num_kv_heads", 2)}, {"num_kv_heads: ", "num_heads = 4", "found 2"}},
        Refusal{"WiderValues", {set(kLinear + "head_v_dim", 64)}, {"head_v_dim: ", "head_dim = 32", "found 64"}},
        Refusal{"ExpandedValues", {set(kLinear + "expand_v", 2.0)}, {"expand_v: expected 1, found 2.0"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Attention, Refusals,
    ::testing::Values(
        Refusal{
            "NopeAbsent", {drop(kText + "mla_use_nope")}, {"text_config.mla_use_nope: expected true", "found nothing"}},
        Refusal{"NopeFalse", {set(kText + "mla_use_nope", false)}, {"mla_use_nope: expected true, found false"}},
        Refusal{"NopeNumber", {set(kText + "mla_use_nope", 1)}, {"mla_use_nope: expected true, found 1"}},
        Refusal{"GroupedQueries", {set(kText + "num_key_value_heads", 2)}, {"num_key_value_heads: ", "= 4", "found 2"}},
        Refusal{"NoHeads", {drop(kText + "num_attention_heads")}, {"num_attention_heads"}},
        Refusal{"NoLatent", {drop(kText + "kv_lora_rank")}, {"kv_lora_rank", "found nothing"}},
        Refusal{"NoNopeDim", {drop(kText + "qk_nope_head_dim")}, {"qk_nope_head_dim"}},
        Refusal{"NoRopeDim", {drop(kText + "qk_rope_head_dim")}, {"qk_rope_head_dim"}},
        Refusal{"NoValueDim", {drop(kText + "v_head_dim")}, {"text_config.v_head_dim"}},
        Refusal{"QueryRankZero", {set(kText + "q_lora_rank", 0)}, {"q_lora_rank", "found 0"}},
        Refusal{
            "GateNotABoolean", {set(kText + "mla_use_output_gate", "yes")}, {"mla_use_output_gate", "true or false"}},
        Refusal{"BlockZero", {set(kText + "attn_res_block_size", 0)}, {"attn_res_block_size", "found 0"}},
        Refusal{"BlockNegative", {set(kText + "attn_res_block_size", -12)}, {"attn_res_block_size", "found -12"}},
        Refusal{
            "OtherAttnResMode", {set(kText + "attn_res_mode", "half")}, {"attn_res_mode", "\"block\" or \"full\""}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    FeedForward, Refusals,
    ::testing::Values(
        Refusal{"OtherActivation", {set(kText + "hidden_act", "gelu")}, {"hidden_act: expected \"situ\" or \"silu\""}},
        Refusal{"ActivationOfAnotherType", {set(kText + "hidden_act", 1)}, {"hidden_act: expected a string, found 1"}},
        Refusal{"NoBeta", {drop(kText + "activation_situ_beta")}, {"activation_situ_beta: ", "found nothing"}},
        Refusal{"NoLinearBeta", {drop(kText + "activation_situ_linear_beta")}, {"activation_situ_linear_beta: "}},
        Refusal{"NullBeta", {set(kText + "activation_situ_beta", nullptr)}, {"activation_situ_beta: "}},
        Refusal{"BetaZero", {set(kText + "activation_situ_beta", 0)}, {"activation_situ_beta", "above 0", "found 0"}},
        Refusal{"LinearBetaNegative", {set(kText + "activation_situ_linear_beta", -25.0)}, {"above 0", "found -25.0"}},
        Refusal{"NoDenseWidth", {drop(kText + "intermediate_size")}, {"intermediate_size"}},
        Refusal{"LayerFrequencyZero", {set(kText + "moe_layer_freq", 0)}, {"moe_layer_freq", "found 0"}},
        Refusal{"SoftmaxRouter",
                {set(kText + "moe_router_activation_func", "softmax")},
                {"moe_router_activation_func: expected \"sigmoid\", found \"softmax\""}},
        Refusal{"OtherTopK", {set(kText + "topk_method", "greedy")}, {"topk_method"}},
        Refusal{"MoreChosenThanExperts", {set(kText + "num_experts_per_token", 17)}, {"num_experts = 16", "found 17"}},
        Refusal{"NoChosen", {drop(kText + "num_experts_per_token")}, {"num_experts_per_token", "found nothing"}},
        Refusal{"NoExpertWidth", {drop(kText + "moe_intermediate_size")}, {"moe_intermediate_size", "found nothing"}},
        Refusal{
            "UnequalGroups", {set(kText + "num_expert_group", 3)}, {"num_expert_group: expected a divisor", "found 3"}},
        Refusal{"MoreGroupsKept",
                {set(kText + "num_expert_group", 2), set(kText + "topk_group", 3)},
                {"topk_group: expected at most num_expert_group = 2, found 3"}},
        Refusal{"KeptGroupsTooSmall",
                {set(kText + "num_expert_group", 8), set(kText + "topk_group", 1)},
                {"num_experts_per_token: expected at most the 2 experts", "found 4"}},
        Refusal{"GroupsOfOne",
                {set(kText + "num_expert_group", 16), set(kText + "topk_group", 8)},
                {"groups of at least 2 experts", "groups of 1"}},
        Refusal{"ScalingZero", {set(kText + "routed_scaling_factor", 0.0)}, {"routed_scaling_factor", "above 0"}},
        Refusal{"NegativeShared", {set(kText + "num_shared_experts", -1)}, {"num_shared_experts", "found -1"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Quantization, Refusals,
    ::testing::Values(
        Refusal{"OtherMethod", {set(kText + "quantization_config/quant_method", "gptq")}, {"quant_method", "\"gptq\""}},
        Refusal{"OtherFormat",
                {set(kText + "quantization_config/format", "nvfp4-pack-quantized")},
                {"quantization_config.format: expected \"mxfp4-pack-quantized\""}},
        Refusal{
            "OtherGroupFormat", {set(kGroup + "format", "float-quantized")}, {"group_0.format", "\"float-quantized\""}},
        Refusal{"NoFormat",
                {drop(kText + "quantization_config/format"), drop(kGroup + "format")},
                {"quantization_config.format: ", "found nothing"}},
        Refusal{"GroupOf16", {set(kGroup + "weights/group_size", 16)}, {"group_size: expected 32, found 16"}},
        Refusal{"EightBits", {set(kGroup + "weights/num_bits", 8)}, {"num_bits: expected 4, found 8"}},
        Refusal{"ZeroPoints", {set(kGroup + "weights/zp_dtype", "torch.int8")}, {"zp_dtype: expected null"}},
        Refusal{"Reordered", {set(kGroup + "weights/actorder", "group")}, {"actorder: expected null"}},
        Refusal{"Asymmetric", {set(kGroup + "weights/symmetric", false)}, {"symmetric: expected true, found false"}},
        Refusal{"Integers", {set(kGroup + "weights/type", "int")}, {"weights.type: expected \"float\""}},
        Refusal{
            "Activations", {set(kGroup + "input_activations", json::object())}, {"input_activations: expected null"}},
        Refusal{"TopLevelCopy",
                {set("/quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "marlin"}})},
                {"\nquantization_config.format: ", "\"marlin\""}},
        Refusal{
            "NotAnObject", {set(kText + "quantization_config", true)}, {"quantization_config: expected an object"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Vision, Refusals,
    ::testing::Values(
        Refusal{
            "UnevenHeads", {set(kVision + "qkv_hidden_size", 49)}, {"qkv_hidden_size", "vt_num_attention_heads = 2"}},
        Refusal{"OddHeadDim", {set(kVision + "qkv_hidden_size", 52)}, {"multiple of 4", "52 / 2 = 26"}},
        Refusal{"Merge",
                {set(kVision + "merge_kernel_size", {2, 4})},
                {"merge_kernel_size: expected [2, 2], found [2, 4]"}},
        Refusal{"TextWidth",
                {set(kVision + "text_hidden_size", 64)},
                {"text_hidden_size", "hidden_size = 128", "found 64"}},
        Refusal{"PosEmb", {set(kVision + "pos_emb_type", "rope")}, {"pos_emb_type", "\"rope\""}},
        Refusal{"Bicubic", {set(kVision + "pos_emb_interpolation_mode", "bicubic")}, {"\"bilinear\"", "\"bicubic\""}},
        Refusal{"Norm", {set(kVision + "norm_type", "layernorm")}, {"norm_type"}},
        Refusal{"Mlp", {set(kVision + "mlp_type", "gated")}, {"mlp_type"}},
        Refusal{"Activation", {set(kVision + "activation_func", "gelu")}, {"activation_func"}},
        Refusal{"MergeType", {set(kVision + "merge_type", "sd2")}, {"merge_type"}},
        Refusal{"Projector", {set(kVision + "mm_projector_type", "patchmerger")}, {"mm_projector_type"}},
        Refusal{"ProjectorAct", {set(kVision + "projector_hidden_act", "silu")}, {"projector_hidden_act"}},
        Refusal{"Bias", {set(kVision + "attn_bias", true)}, {"attn_bias: expected false, found true"}},
        Refusal{"ProjectorWidth", {set(kVision + "mm_hidden_size", 80)}, {"mm_hidden_size", "vt_hidden_size = 40"}},
        Refusal{"NotAnObject", {set("/vision_config", "big")}, {"vision_config: expected an object"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Values, Refusals,
    ::testing::Values(
        Refusal{"NoHiddenSize", {drop(kText + "hidden_size")}, {"text_config.hidden_size: ", "found nothing"}},
        Refusal{"NoLayerCount", {drop(kText + "num_hidden_layers")}, {"num_hidden_layers: ", "found nothing"}},
        Refusal{"HiddenSizeText", {set(kText + "hidden_size", "128")}, {"hidden_size", "found \"128\""}},
        Refusal{"HiddenSizeFraction", {set(kText + "hidden_size", 128.0)}, {"an integer from 1", "found 128.0"}},
        Refusal{"HiddenSizeNegative", {set(kText + "hidden_size", -128)}, {"found -128"}},
        Refusal{"HiddenSizeHuge", {set(kText + "hidden_size", 18446744073709551615u)}, {"found 18446744073709551615"}},
        Refusal{"HiddenSizeTooLarge", {set(kText + "hidden_size", 1 << 25)}, {"to 16777216"}},
        Refusal{"HiddenSizeList", {set(kText + "hidden_size", {1, 2, 3})}, {"found a list of 3"}},
        Refusal{"VocabularyZero", {set(kText + "vocab_size", 0)}, {"vocab_size", "found 0"}},
        Refusal{"EpsZero", {set(kText + "rms_norm_eps", 0)}, {"rms_norm_eps", "above 0"}},
        Refusal{"EpsText", {set(kText + "rms_norm_eps", "1e-5")}, {"rms_norm_eps", "finite number"}},
        Refusal{"EosText", {set("/eos_token_id", "end")}, {"eos_token_id", "found \"end\""}},
        Refusal{"EosListOfText", {set("/eos_token_id", {1, "end"})}, {"eos_token_id", "\"end\" at position 1"}},
        Refusal{"BosNegative", {set("/bos_token_id", -1)}, {"bos_token_id", "found -1"}},
        Refusal{"TieText", {set("/tie_word_embeddings", "no")}, {"tie_word_embeddings: expected true or false"}},
        Refusal{"ShapesOverflowTogether",
                {set(kText + "hidden_size", 1 << 24), set(kText + "intermediate_size", 1 << 24),
                 set(kText + "num_experts", 65536), set(kText + "moe_intermediate_size", 1 << 24),
                 set(kText + "routed_expert_hidden_size", 1 << 24), drop("/vision_config")},
                {"the shapes together", "2^56"}}),
    test_name);

TEST(ModelConfigRefusals, AllProblemsOfAFileAreReportedAtOnce) {
  const auto config = parse(changed("k3-tiny", {set(kText + "mla_use_nope", false), set(kText + "hidden_act", "relu"),
                                                drop(kText + "kv_lora_rank"), set(kLinear + "gate_lower_bound", 2),
                                                set(kGroup + "weights/num_bits", 3), set(kVision + "mlp_type", "x")}));
  ASSERT_FALSE(config.is_ok());
  const std::string& message = config.status().message();
  EXPECT_THAT(message, HasSubstr("config.json: 6 problems\n"));
  for (const char* field : {"mla_use_nope", "hidden_act", "kv_lora_rank", "gate_lower_bound", "num_bits", "mlp_type"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
}

TEST(ModelConfigRefusals, TextThatIsNotJson) {
  EXPECT_THAT(parse_model_config("{\"a\": 1,}", "c").status().message(), HasSubstr("syntax error at byte 9 of 9"));
  EXPECT_THAT(parse_model_config("", "c").status().message(), HasSubstr("c: expected JSON"));
  EXPECT_THAT(parse_model_config("[1]", "c").status().message(),
              HasSubstr("expected a JSON object, found a list of 1"));
  std::string text = golden_config("kimi-linear-tiny").dump();
  const size_t at = text.find("1e-05");
  ASSERT_NE(at, std::string::npos);
  for (const std::string number : {"NaN", "Infinity", "1e999"}) {
    EXPECT_FALSE(parse_model_config(std::string(text).replace(at, 5, number), "c").is_ok()) << number;
  }
  EXPECT_FALSE(parse_model_config(std::string(200000, '['), "c").is_ok());
  EXPECT_FALSE(parse_model_config("{\"architectures\": \"\xff\"}", "c").is_ok());
}

TEST(ModelConfigRefusals, DeeplyNestedValueOfAKnownField) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const auto config = parse_model_config("{\"architectures\": " + deep + "}", "c");
  EXPECT_THAT(config.status().message(), HasSubstr("architectures: "));
}

// ------------------------------------------------------------------------------------------- fields and their defaults

TEST(ModelConfigFields, K3TinyIsReadWhole) {
  const ModelConfig c = must_parse(golden_config("k3-tiny"));
  EXPECT_EQ(c.family, ModelFamily::kKimiK3);
  EXPECT_EQ(c.vocab_size, 384);
  EXPECT_EQ(c.hidden_size, 128);
  EXPECT_EQ(c.num_hidden_layers, 9);
  EXPECT_DOUBLE_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_DOUBLE_EQ(c.mla_lora_norm_eps, 1e-6);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  const std::vector<LayerKind> kinds = {LayerKind::kKda, LayerKind::kKda, LayerKind::kKda,
                                        LayerKind::kMla, LayerKind::kKda, LayerKind::kKda,
                                        LayerKind::kKda, LayerKind::kMla, LayerKind::kMla};
  EXPECT_EQ(c.kinds, kinds);
  EXPECT_EQ(c.num_layers_of(LayerKind::kKda), 6);
  EXPECT_EQ(c.num_layers_of(LayerKind::kMla), 3);
  EXPECT_EQ(c.kda_num_heads, 4);
  EXPECT_EQ(c.kda_head_dim, 32);
  EXPECT_EQ(c.kda_projection_size(), 128);
  EXPECT_EQ(c.short_conv_kernel_size, 4);
  EXPECT_EQ(c.gate_lower_bound, -5.0);
  EXPECT_TRUE(c.use_full_rank_gate);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.q_lora_rank, 48);
  EXPECT_EQ(c.kv_lora_rank, 32);
  EXPECT_EQ(c.qk_head_dim(), 48);
  EXPECT_EQ(c.mla_latent_width(), 48);
  EXPECT_EQ(c.v_head_dim, 32);
  EXPECT_TRUE(c.mla_use_output_gate);
  EXPECT_EQ(c.hidden_act, HiddenAct::kSitu);
  EXPECT_EQ(c.situ_beta, 4.0);
  EXPECT_EQ(c.situ_linear_beta, 25.0);
  EXPECT_EQ(c.intermediate_size, 192);
  EXPECT_EQ(c.num_experts, 16);
  EXPECT_EQ(c.num_experts_per_token, 4);
  EXPECT_EQ(c.num_shared_experts, 2);
  EXPECT_EQ(c.moe_intermediate_size, 32);
  EXPECT_EQ(c.routed_expert_hidden_size, 64);
  EXPECT_TRUE(c.latent_moe_use_norm);
  EXPECT_EQ(c.attn_res_mode, AttnResMode::kBlock);
  EXPECT_EQ(c.attn_res_block_size, 4);
  EXPECT_EQ(c.max_attn_res_sources(), 4);  // blocks stored at layers 0, 4, 8, and the running sum
  EXPECT_TRUE(c.declares_mxfp4);
  EXPECT_EQ(c.bos_token_id, 370);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{371});
  EXPECT_EQ(c.pad_token_id, 383);
  EXPECT_EQ(c.media_placeholder_token_id, 377);
  ASSERT_TRUE(c.vision.has_value());
  EXPECT_EQ(c.vision->qkv_hidden_size, 48);
  EXPECT_EQ(c.vision->vt_num_hidden_layers, 3);
  EXPECT_EQ(c.vision->init_pos_emb_height, 8);
  EXPECT_FALSE(c.is_moe(0));
  EXPECT_TRUE(c.is_moe(1));
}

TEST(ModelConfigFields, KimiLinearTinyIsReadWhole) {
  const ModelConfig c = must_parse(golden_config("kimi-linear-tiny"));
  EXPECT_EQ(c.family, ModelFamily::kKimiLinear);
  EXPECT_EQ(c.kda_head_dim, 128) << "linear_attn_config's, not the meaningless head_dim beside it";
  EXPECT_EQ(c.gate_lower_bound, std::nullopt);
  EXPECT_FALSE(c.use_full_rank_gate);
  EXPECT_EQ(c.q_lora_rank, std::nullopt);
  EXPECT_FALSE(c.mla_use_output_gate);
  EXPECT_EQ(c.hidden_act, HiddenAct::kSilu);
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_EQ(c.attn_res_mode, AttnResMode::kNone);
  EXPECT_EQ(c.max_attn_res_sources(), 0);
  EXPECT_FALSE(c.has_latent_experts());
  EXPECT_EQ(c.expert_input_size(), 64);
  EXPECT_FALSE(c.declares_mxfp4);
  EXPECT_EQ(c.max_position_embeddings, 4096) << "from model_max_length";
  EXPECT_FALSE(c.vision.has_value());
}

TEST(ModelConfigFields, EveryDefault) {
  const json minimal = {{"architectures", {"KimiLinearForCausalLM"}},
                        {"hidden_size", 64},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 2},
                        {"intermediate_size", 96},
                        {"kv_lora_rank", 32},
                        {"qk_nope_head_dim", 16},
                        {"qk_rope_head_dim", 8},
                        {"v_head_dim", 16},
                        {"mla_use_nope", true}};
  const ModelConfig c = must_parse(minimal);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.dtype, "bfloat16");
  EXPECT_EQ(c.kinds, (std::vector<LayerKind>{LayerKind::kMla, LayerKind::kMla})) << "no linear_attn_config: all MLA";
  EXPECT_EQ(c.kda_num_heads, 0);
  EXPECT_EQ(c.hidden_act, HiddenAct::kSilu);
  EXPECT_EQ(c.first_k_dense_replace, 0);
  EXPECT_EQ(c.moe_layer_freq, 1);
  EXPECT_EQ(c.num_experts, 0);
  EXPECT_FALSE(c.is_moe(1));
  EXPECT_EQ(c.num_shared_experts, 0);
  EXPECT_EQ(c.routed_expert_hidden_size, std::nullopt);
  EXPECT_FALSE(c.latent_moe_use_norm);
  EXPECT_TRUE(c.moe_renormalize);
  EXPECT_EQ(c.routed_scaling_factor, 1.0);
  EXPECT_EQ(c.num_expert_group, 1);
  EXPECT_EQ(c.topk_group, 1);
  EXPECT_EQ(c.q_lora_rank, std::nullopt);
  EXPECT_FALSE(c.mla_use_output_gate);
  EXPECT_EQ(c.max_position_embeddings, std::nullopt);
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.attn_res_mode, AttnResMode::kNone);
  EXPECT_FALSE(c.declares_mxfp4);
  EXPECT_EQ(c.bos_token_id, std::nullopt);
  EXPECT_TRUE(c.eos_token_ids.empty());
  EXPECT_EQ(c.pad_token_id, std::nullopt);
  EXPECT_FALSE(c.vision.has_value());
}

TEST(ModelConfigFields, EveryVisionDefault) {
  json document = golden_config("k3-tiny");
  document["vision_config"] = json::object();
  const VisionConfig v = must_parse(document).vision.value();
  EXPECT_EQ(v.patch_size, 14);
  EXPECT_EQ(v.init_pos_emb_height, 64);
  EXPECT_EQ(v.init_pos_emb_width, 64);
  EXPECT_EQ(v.init_pos_emb_time, 4);
  EXPECT_EQ(v.vt_hidden_size, 1024);
  EXPECT_EQ(v.vt_intermediate_size, 4096);
  EXPECT_EQ(v.vt_num_attention_heads, 12);
  EXPECT_EQ(v.vt_num_hidden_layers, 27);
  EXPECT_EQ(v.qkv_hidden_size, 1536);
  EXPECT_EQ(v.mm_hidden_size, 1024);
  EXPECT_EQ(v.projector_ln_eps, 1e-5);
}

TEST(ModelConfigFields, TopLevelWinsOverTextConfigAndTextConfigFillsIn) {
  json document = changed("k3-tiny", {set("/bos_token_id", 1), set(kText + "bos_token_id", 2), drop("/pad_token_id"),
                                      set(kText + "pad_token_id", 3), set("/tie_word_embeddings", true),
                                      set(kText + "tie_word_embeddings", false), drop("/dtype"), drop(kText + "dtype"),
                                      set(kText + "torch_dtype", "float16")});
  ModelConfig c = must_parse(document);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, 3);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.dtype, "float16");
  document.erase("tie_word_embeddings");
  document["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(must_parse(document).tie_word_embeddings);
}

TEST(ModelConfigFields, EosMayBeAListWithRepeats) {
  EXPECT_EQ(must_parse(changed("k3-tiny", {set("/eos_token_id", {371, 5, 371})})).eos_token_ids,
            (std::vector<int32_t>{371, 5}));
}

TEST(ModelConfigFields, QuantizationIsFoundInEitherPlaceAndFormatInEitherLevel) {
  const json quantization = golden_config("k3-tiny")["text_config"]["quantization_config"];
  EXPECT_TRUE(
      must_parse(changed("k3-tiny", {drop(kText + "quantization_config"), set("/quantization_config", quantization)}))
          .declares_mxfp4);
  EXPECT_TRUE(must_parse(changed("k3-tiny", {drop(kText + "quantization_config/format")})).declares_mxfp4);
  EXPECT_TRUE(must_parse(changed("k3-tiny", {drop(kText + "quantization_config/config_groups")})).declares_mxfp4)
      << "no groups stated: groups of 32, 4 bits";
  EXPECT_FALSE(must_parse(changed("k3-tiny", {set(kText + "quantization_config", nullptr)})).declares_mxfp4);
}

TEST(ModelConfigFields, GroupsOfExpertsAreReadAndIgnoredWhenGroupingIsOff) {
  const std::vector<Change> groups = {set(kText + "num_expert_group", 4), set(kText + "topk_group", 2)};
  ModelConfig c = must_parse(changed("k3-tiny", groups));
  EXPECT_EQ(c.num_expert_group, 4);
  EXPECT_EQ(c.topk_group, 2);
  std::vector<Change> off = groups;
  off.push_back(set(kText + "use_grouped_topk", false));
  c = must_parse(changed("k3-tiny", off));
  EXPECT_EQ(c.num_expert_group, 1);
  EXPECT_EQ(c.topk_group, 1);
}

TEST(ModelConfigFields, BoilerplateAndVideoFieldsAreIgnored) {
  EXPECT_TRUE(parse(changed("k3-tiny", {set(kText + "rope_theta", "odd"), set(kText + "head_dim", 7),
                                        set(kVision + "video_attn_type", "spatial_temporal"),
                                        set("/auto_map", json::object()), set(kText + "temperature", 2.5)}))
                  .is_ok());
}

// ------------------------------------------------------------------------------------------------ user-trained
// variants

TEST(ModelConfigVariants, SmallModelsWithOtherMechanismsLoad) {
  const std::vector<std::pair<std::string, std::vector<Change>>> variants = {
      {"no vision", {drop("/vision_config")}},
      {"null vision", {set("/vision_config", nullptr)}},
      {"dense only", {set(kText + "num_experts", nullptr)}},
      {"dense only, experts 0", {set(kText + "num_experts", 0), drop(kText + "num_experts_per_token")}},
      {"no AttnRes", {drop(kText + "attn_res_block_size")}},
      {"Full AttnRes", {set(kText + "attn_res_mode", "full")}},
      {"block of one", {set(kText + "attn_res_block_size", 1)}},
      {"block larger than the model", {set(kText + "attn_res_block_size", 40)}},
      {"softplus gate", {drop(kLinear + "gate_lower_bound")}},
      {"softplus gate, null", {set(kLinear + "gate_lower_bound", nullptr)}},
      {"weaker bound", {set(kLinear + "gate_lower_bound", -0.5)}},
      {"low-rank gate", {drop(kLinear + "use_full_rank_gate")}},
      {"direct queries", {drop(kText + "q_lora_rank")}},
      {"no latent", {drop(kText + "routed_expert_hidden_size")}},
      {"no shared experts", {set(kText + "num_shared_experts", 0)}},
      {"null shared experts", {set(kText + "num_shared_experts", nullptr)}},
      {"more KDA heads than MLA heads", {set(kLinear + "num_heads", 6)}},
      {"other KDA head dim", {set(kLinear + "head_dim", 48)}},
      {"value heads stated and equal", {set(kLinear + "num_v_heads", 4), set(kLinear + "head_v_dim", 32)}},
      {"SwiGLU", {set(kText + "hidden_act", "silu"), drop(kText + "activation_situ_beta")}},
      {"tied", {set("/tie_word_embeddings", true)}},
      {"plain weights", {drop(kText + "quantization_config")}},
      {"wider convolution", {set(kLinear + "short_conv_kernel_size", 8)}},
  };
  for (const auto& [name, changes] : variants) {
    const auto config = parse(changed("k3-tiny", changes));
    EXPECT_TRUE(config.is_ok()) << name << ": " << config.status().message();
  }
}

TEST(ModelConfigVariants, OneKindOfLayerOnly) {
  const json all = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ModelConfig c = must_parse(
      changed("k3-tiny", {set(kLinear + "kda_layers", all), set(kLinear + "full_attn_layers", json::array()),
                          drop(kText + "kv_lora_rank"), drop(kText + "mla_use_nope"), drop(kText + "v_head_dim"),
                          drop(kText + "qk_nope_head_dim"), drop(kText + "qk_rope_head_dim")}));
  EXPECT_EQ(c.num_layers_of(LayerKind::kKda), 9);
  c = must_parse(
      changed("k3-tiny", {set(kLinear + "full_attn_layers", all), set(kLinear + "kda_layers", json::array())}));
  EXPECT_EQ(c.num_layers_of(LayerKind::kMla), 9);
  c = must_parse(changed("k3-tiny", {drop(kText + "linear_attn_config")}));
  EXPECT_EQ(c.num_layers_of(LayerKind::kMla), 9);
}

TEST(ModelConfigVariants, AttnResSourcesOfBlockAndFull) {
  EXPECT_EQ(must_parse(changed("k3-tiny", {set(kText + "attn_res_mode", "full")})).max_attn_res_sources(), 19);
  EXPECT_EQ(must_parse(changed("k3-tiny", {set(kText + "attn_res_block_size", 3)})).max_attn_res_sources(), 4);
  EXPECT_EQ(must_parse(changed("k3-tiny", {set(kText + "attn_res_block_size", 40)})).max_attn_res_sources(), 2);
}

// --------------------------------------------------------------------------------------------------------------- files

TEST(ModelConfigFiles, EveryShapeOfTheRepositoryLoads) {
  for (const char* file : {"k3", "k3-8l", "k3-mini", "k3-stream", "kimi-linear-48b"}) {
    const auto config = load_model_config_file(test::data_path("../../configs/" + std::string(file) + ".json"));
    EXPECT_TRUE(config.is_ok()) << config.status().message();
  }
}

TEST(ModelConfigFiles, K3LayerMapEndsWithTwoMlaLayers) {
  const ModelConfig c = load_model_config_file(test::data_path("../../configs/k3.json")).value();
  EXPECT_EQ(c.num_layers_of(LayerKind::kKda), 69);
  EXPECT_EQ(c.num_layers_of(LayerKind::kMla), 24);
  EXPECT_EQ(c.kinds[90], LayerKind::kKda);
  EXPECT_EQ(c.kinds[91], LayerKind::kMla);
  EXPECT_EQ(c.kinds[92], LayerKind::kMla);
  EXPECT_EQ(c.max_attn_res_sources(), 9);
}

TEST(ModelConfigFiles, TroubleWithFilesNamesThem) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(::testing::TempDir()) / "tandem_config_files";
  fs::remove_all(dir);
  auto missing = load_model_config((dir / "nowhere").string());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("nowhere: expected a model folder"));

  fs::create_directories(dir);
  auto empty = load_model_config(dir.string());
  EXPECT_EQ(empty.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(empty.status().message(), HasSubstr("config.json: no such file"));

  std::ofstream(dir / "file") << "x";
  EXPECT_THAT(load_model_config((dir / "file").string()).status().message(), HasSubstr("found a file"));

  fs::create_directories(dir / "odd" / "config.json");
  EXPECT_THAT(load_model_config((dir / "odd").string()).status().message(), HasSubstr("not a regular file"));

  fs::create_directories(dir / "big");
  std::ofstream(dir / "big" / "config.json") << "{}";
  fs::resize_file(dir / "big" / "config.json", (uintmax_t{64} << 20) + 1);  // sparse
  EXPECT_THAT(load_model_config((dir / "big").string()).status().message(), HasSubstr("of at most 67108864 bytes"));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace tandem
