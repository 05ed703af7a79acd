# TANDEM_TRAIN=AUTO/ON/OFF: whether the trainer is built. It needs LibTorch (Debian's libtorch-dev, or the one inside a
# PyTorch: -DCMAKE_PREFIX_PATH="$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')") and g++, whose
# dialect its headers are written in. Sets TANDEM_HAS_TRAIN.
set(TANDEM_TRAIN AUTO CACHE STRING "Build the trainer, which needs LibTorch and g++: AUTO, ON or OFF")
set_property(CACHE TANDEM_TRAIN PROPERTY STRINGS AUTO ON OFF)
set(TANDEM_HAS_TRAIN OFF)
if(TANDEM_TRAIN)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    find_package(Torch QUIET)
  endif()
  if(Torch_FOUND)
    set(TANDEM_HAS_TRAIN ON)
  elseif(NOT TANDEM_TRAIN STREQUAL "AUTO")
    message(FATAL_ERROR "TANDEM_TRAIN=${TANDEM_TRAIN}: needs g++ (found ${CMAKE_CXX_COMPILER_ID}) and LibTorch (found: ${Torch_FOUND})")
  endif()
endif()
message(STATUS "Trainer: ${TANDEM_HAS_TRAIN} (TANDEM_TRAIN=${TANDEM_TRAIN})")
