# The folder list of src/ in data-flow order and what each may include: the one place that states the layering.
# tandem_add_folder() links by it and tools/check_layers.cmake checks every #include against it.
set(TANDEM_FOLDERS base config tensor weights kernels cache cost plan sched model stream sample text engine corpus evaluate server train)

set(TANDEM_DEPS_base "")
set(TANDEM_DEPS_config base)
set(TANDEM_DEPS_tensor base config)
set(TANDEM_DEPS_weights base config tensor)
set(TANDEM_DEPS_kernels base config tensor)
set(TANDEM_DEPS_cache base config tensor kernels)
# What a step costs and where memory goes, from shapes: sees headers, never a weight.
set(TANDEM_DEPS_cost base config tensor weights kernels cache)
set(TANDEM_DEPS_plan base config)
# The scheduler sees blocks and tokens, never a tensor.
set(TANDEM_DEPS_sched base config tensor cache plan)
set(TANDEM_DEPS_model base config tensor kernels cache plan weights)
set(TANDEM_DEPS_stream base config tensor weights kernels cache plan model)
set(TANDEM_DEPS_sample base config tensor)
set(TANDEM_DEPS_text base)
set(TANDEM_DEPS_engine base config tensor kernels cache cost plan sched weights model stream sample text)
set(TANDEM_DEPS_corpus base config text weights tensor)
# evaluate drives the engine on held-out data; train does not see it, and it does not see train.
set(TANDEM_DEPS_evaluate base config tensor weights text sample plan cache model engine corpus)
# The server knows the engine by engine/service.h alone.
set(TANDEM_DEPS_server base config tensor cache text sample engine)
# train is the only folder that links LibTorch.
set(TANDEM_DEPS_train base config tensor weights text corpus)
