# SPDX-License-Identifier: Apache-2.0
# Compiler options of this project's own targets only: nothing here reaches a user who links moesaic.
add_library(moesaic_options INTERFACE)
target_compile_options(moesaic_options INTERFACE
  -Wall -Wextra -Wno-unused-parameter -Werror=return-type -fpch-preprocess)
if(MOESAIC_WERROR)
  target_compile_options(moesaic_options INTERFACE -Werror)
endif()
if(MOESAIC_SANITIZE)
  target_compile_options(moesaic_options INTERFACE
    -fsanitize=${MOESAIC_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(moesaic_options INTERFACE -fsanitize=${MOESAIC_SANITIZE})
endif()
