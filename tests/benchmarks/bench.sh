# The benchmarks of ./run bench. ./run sources this file.
# shellcheck shell=bash disable=SC2154 # ./run sets the variables

bench_usage() {
  cat <<'USAGE'
  bench [args]      build and run the embedding benchmark; the first of args may choose another one:
                    --peers       compare with FBGEMM, torch::nn::EmbeddingBag and TensorFlow
                                  (installs about 8 GB); --json FILE writes the results, and --from FILE
                                  prints and draws them without a measurement
                    --threads     compare with the fastest of these libraries with 1, 2, 4, ... threads, up to
                                  all cores (installs as much, but no library with --peer none);
                                  --threads-list 1,2,4 sets the numbers; --json and --from work as above
                    --growth      draw how times grow with each size
                    --large       measure the memory and the steps of tables of 20 to 150 million rows, in float32,
                                  bfloat16 and int8 (needs 20 GB of memory)
                    --overlap     time lookups during dense work
                    --checkpoint  time saving and loading a big table, with --keys a key table (needs 25 GB of disk)
                    --sharded     time steps of several processes; --ranks N sets their number, and
                                  --hosts N gives each its own network (as root; --link-gbit G limits it)
                    --reader      time the reader of click logs
                    --corpus      time an evaluation with a million items
                    --keys        time key tables: lookups of keys, compared with abseil, and steps,
                                  compared with a table with a vocabulary (needs 12 GB of memory)
                    --key-growth  time the steps of a table that grows to 50 million keys, with its memory
                                  taken when used, and beforehand (needs 6 GB of memory)
                    --key-quality train a click model with keys, with a vocabulary and with hashed ids, and print
                                  the AUC over the memory of the tables; --json FILE writes the results,
                                  --svg FILE draws them, and --from FILE shows results without a training
                    --sources     compare the readers of CSV and Parquet files with pyarrow's
                                  (installs about 400 MB)
                    --dataset     time the batches of a dataset in memory
                    --dlrm        compare DLRM and DCN-v2 with Python's torch (installs about 6 GB); --size bars
                                  and mlperf take a DCN-v2 of a published size, in float32 and bfloat16
                    --products    time the matrix products of these models, beside the peak of the cores, at::mm,
                                  OpenBLAS and oneDNN
                    --sasrec      compare SASRec with Python's torch (installs about 6 GB)
                    --recommenders  compare the time that models take to the same quality with RecTools and
                                  RecBole, on --data FOLDER of docs/quality.md (installs about 6 GB)
                    --candidates  compare ways to score many candidates for one user (installs about 6 GB)
                    --recommend   find the best of many items with filters, beside faiss, hnswlib and a matrix product;
                                  --clicks FILE has a user and the user's items on each line, such as
                                  gowalla_train.txt of docs/quality.md; --approximate builds graphs and clusters
                                  of faiss, and of hnswlib, if its headers (0.7 or newer) are installed
                    --serving     compare ways to serve a click model (installs about 6 GB)
                    --row-stores  compare lookups in published rows with FBGEMM, Redis and RocksDB (installs about
                                  6 GB; needs 8 GB of memory and 4 GB of disk); --quick takes few rows
                    --live        time publishing a model that is being trained: lookups in published rows beside
                                  a plain gather, and the way from a step to a changed row in another process
                                  (needs 12 GB of memory and 6 GB of disk)
                    --scaling     estimate training steps of a terabyte of tables on many hosts
                    --markdown    put the tables of docs/performance/ into docs/performance.md; --check only
                                  compares. --peers, --threads, --dlrm and --serving write such a
                                  table with --table FILE
USAGE
}

readonly embedding_options="--workload --workloads --op --kernel --refuse --limits --no-limits --threads --warmup \
--reps --min-ms --seed --batches --ids --help -h"

# Whether the arguments ask a script for a measurement, and not for its help or the results in a file.
measures() { [[ ! " $* " =~ \ (--from[\ =]|--help\ |-h\ ) ]]; }

install_peers() {
  install_torch_python
  install_python peers/tf tensorflow-cpu tf-keras numpy
}

# compare SCRIPT PYTHON PROGRAM [arguments]: runs a Python script that calls a program, with the Python "torch",
# "recommenders", or "charts", which has matplotlib and pyarrow.
compare() {
  local script="$PWD/tests/benchmarks/$1" python="$2" program="$build/$3"
  shift 3
  if measures "$@"; then
    setup
  else
    install_packages python3 python3-venv
  fi
  if [[ "$python" == torch ]]; then
    install_packages python3-dev # torch.compile includes Python.h
    once install_torch_python
  elif [[ "$python" == recommenders ]]; then
    once install_python peers/recommenders "torch==$torch_version" 'rectools[torch]==0.19.0' recbole==1.2.1 'setuptools<81'
  else
    once install_python peers/charts matplotlib "pyarrow==$arrow_version"
  fi
  ! measures "$@" || build "${program##*/}"
  launch "$deps/peers/$python/bin/python" "$script" --program "$program" "$@"
}

run_bench() {
  local folder=tests/benchmarks program choice="${1-}" all=("$@") script=compare_peers.py
  # With a number after it, --threads is an option of the embedding benchmark.
  [[ ! "$*" =~ ^--threads[\ =][0-9] ]] || choice=''
  (($# == 0)) || shift
  case "$choice" in
    --peers | --threads)
      [[ "$choice" == --peers ]] || script=thread_sweep.py
      if measures "$@" && [[ ! " $* " =~ \ --peer[\ =]none\  ]]; then
        setup
        once install_peers
      fi
      compare "$script" charts "$folder/embedding_benchmark" "$@"
      ;;
    --growth) compare growth.py charts "$folder/embedding_benchmark" "$@" ;;
    --large) compare large_tables.py charts "$folder/embedding_benchmark" "$@" ;;
    --key-quality) compare key_quality.py charts "$folder/key_quality_benchmark" "$@" ;;
    --sources) compare compare_sources.py charts "$folder/source_benchmark" "$@" ;;
    --dlrm)
      program=examples/dlrm_criteo
      [[ ! " $* " =~ \ --size[\ =](bars|mlperf)\  ]] || program="$folder/click_step_benchmark"
      compare compare_dlrm.py torch "$program" "$@"
      ;;
    --sasrec)
      setup
      once install_movielens
      compare compare_sasrec.py torch examples/sasrec "$@"
      ;;
    --recommenders) compare compare_recommenders.py recommenders examples/leaderboard "$@" ;;
    --candidates) compare compare_candidates.py torch "$folder/candidates_benchmark" "$@" ;;
    --serving) compare compare_serving.py torch "$folder/serving_benchmark" "$@" ;;
    --row-stores)
      ! measures "$@" || install_packages librocksdb-dev libhiredis-dev redis-server # only to compare with
      compare compare_row_stores.py torch "$folder/row_store_benchmark" "$@"
      ;;
    --products)
      install_packages libopenblas0-pthread libdnnl2 # only to compare with
      OPENBLAS_NUM_THREADS=1 run_program "$folder/product_benchmark" "$@"
      ;;
    --overlap | --checkpoint | --reader | --dataset | --live) run_program "$folder/${choice#--}_benchmark" "$@" ;;
    --markdown) launch python3 "$PWD/$folder/page_tables.py" "$@" ;;
    --load) run_program "$folder/http_load" "$@" ;;
    --recommend) run_program "$folder/recommend_benchmark" "$@" ;;
    --corpus) run_program "$folder/corpus_evaluation_benchmark" "$@" ;;
    --scaling) run_program "$folder/scaling_plan" "$@" ;;
    --sharded)
      take_options "--ranks --hosts --link-gbit" "$@"
      ((${#taken[@]})) || taken=(--ranks 2)
      run_program "$folder/sharded_benchmark" "${arguments[@]}"
      ;;
    --keys)
      install_packages libabsl-dev # only to compare with
      run_program "$folder/key_benchmark"
      run_program "$folder/key_step_benchmark" "$@"
      ;;
    --key-growth)
      run_program "$folder/key_growth_benchmark" "$@"
      run_program "$folder/key_growth_benchmark" --preallocate "$@"
      ;;
    *)
      if [[ -n "$choice" && " $embedding_options " != *" ${choice%%=*} "* ]]; then
        bench_usage >&2
        fail "unknown option '$choice', expected one of the above or of the embedding benchmark: $embedding_options"
      fi
      run_program "$folder/embedding_benchmark" "${all[@]}"
      ;;
  esac
}
