# Runs the example models, and checks that each model beats both baselines. Each of them must: the generated data has
# structure that no baseline can learn.
#   cmake -D MODELS=<program> -D DATA=<MovieLens folder> -P ...
foreach(variable IN ITEMS MODELS DATA)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_models.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

execute_process(COMMAND "${MODELS}" OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
message("${table}")
foreach(line IN ITEMS "matrix factorization +stars +RMSE" "FM +click +AUC" "DeepFM +click +AUC" "DIN +click +AUC"
                      "MMoE +click +AUC" "MMoE +like +AUC")
  if(NOT table MATCHES "\n${line} +0\\.[0-9]+|\n${line} +1\\.[0-9]+" OR NOT table MATCHES "\n${line} [ 0-9.]+beats both\n")
    message(FATAL_ERROR "expected a line '${line}' that says 'beats both'")
  endif()
endforeach()

# An untrained model says that it does not beat its baselines. MovieLens has a line of its own.
execute_process(COMMAND "${MODELS}" --data "${DATA}" --epochs 1 OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
message("${table}")
if(NOT table MATCHES "\nMovieLens, MF +stars +RMSE [ 0-9.]+does not beat ")
  message(FATAL_ERROR "expected a line of MovieLens that says 'does not beat'")
endif()
expect_message(1 "u.genre" "${MODELS}" --epochs 1 --data nowhere)
expect_error_when_output_is_full("${MODELS}" --epochs 1)
