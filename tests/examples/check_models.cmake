# Runs the example models. Each model has a line with its verdict, and the models of one label must beat both baselines,
# because the generated data has structure that no baseline can learn.
#   cmake -D MODELS=<program> -D DATA=<MovieLens folder> -P ...
foreach(variable IN ITEMS MODELS DATA)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check_models.cmake needs -D ${variable}=...")
  endif()
endforeach()
include("${CMAKE_CURRENT_LIST_DIR}/expect_message.cmake")

execute_process(COMMAND "${MODELS}" OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
message("${table}")
foreach(line IN ITEMS "matrix factorization +stars +RMSE" "FM +click +AUC" "DeepFM +click +AUC" "DIN +click +AUC")
  if(NOT table MATCHES "\n${line} [ 0-9.]+beats both\n")
    message(FATAL_ERROR "expected a line '${line}' that says 'beats both'")
  endif()
endforeach()
foreach(line IN ITEMS "MMoE +click +AUC" "MMoE +like +AUC")
  if(NOT table MATCHES "\n${line} [ 0-9.]+(beats both|does not beat [a-z ]+)\n")
    message(FATAL_ERROR "expected a line '${line}' with a verdict")
  endif()
endforeach()

# MovieLens has a line of its own.
execute_process(COMMAND "${MODELS}" --data "${DATA}" --epochs 1 OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
message("${table}")
if(NOT table MATCHES "\nMovieLens, MF +stars +RMSE [ 0-9.]+(beats both|does not beat [a-z ]+)\n")
  message(FATAL_ERROR "expected a line of MovieLens with a verdict")
endif()
expect_message(1 "u.genre" "${MODELS}" --epochs 1 --data nowhere)
expect_error_when_output_is_full("${MODELS}" --epochs 1)
