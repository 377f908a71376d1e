# make run   the smoke matrix on this machine, to tables and a report
# make resume  go on with a run after whatever stopped it: kill, reboot, Ctrl-C, failures; on a cluster its left-over jobs end first
# make test  everything that must pass before a change lands: make horovod, make lint and make unit
# make lint  ruff, snakefmt and mypy
# make unit  the tests alone (K=NAME, as make test: those with it in their names)
# make test-fast  what holds of every scheme and compressor, and what scripts do: a minute, without Horovod
# make test-torch  the library's tests with another torch, in an environment of its own (TORCH=2.15.0)
# make format  format Python files and Snakemake's rules, and mend what ruff can
# make fuzz  1,000 models and scripts that a generator composes, against plain torch (EXAMPLES: how many)
# make check  does the library still save the memory it did? measured, and compared to the byte (ACCEPT='why': the new reference)
# make micro  how fast a gradient is compressed, beside plain torch and a copy
# make gpu  the next stretch, of 9 minutes at most, of all that is measured on one GPU (DRYRUN=1: only list it)
# make bundle  a run with all that it rests on in one zip, for python -m benchmarks verify (RUN=name)
# make horovod  build Horovod once, for its tests and for cells with backend horovod (kept in the user's cache)
# make images  an image without CUDA, and two small cells in it with docker and with apptainer (IMAGE=cuda12: with CUDA 12)
# make test-browser  tests of a run's page in Chromium, which is fetched where none is installed
# make test-images  tests of the images, with a Docker Engine
# make test-slurm  cells and faults on a Slurm cluster on this machine, as root (test-slurm-full: all of them)
# make locks  lock files of the images (UPGRADE=1: with the newest versions that are allowed)
# make audit  known vulnerabilities of the images' packages, by pip-audit
# make docs  pages of the library's interface, in docs/api
# make clean  delete environments, and docs/api, but nothing measured (distclean: also runs, bundles and caches)
# All but clean build .venv first; RUN=name and CONFIG=file choose another run, PART=name a part of it, RUNTIME=docker what cells run in.
PYTHON ?= python3
RUN ?= smoke
CONFIG ?= benchmarks/config/$(RUN).yaml
PART ?=
RUNTIME ?= none
IMAGE ?= cpu
UPGRADE ?=
OPTIONS ?=
ACCEPT ?=
DRYRUN ?=
EXAMPLES ?= 1000
K ?=
TORCH ?= 2.9.0
BIN := .venv/bin
# For tests of the kernels on a CPU, in a folder where nothing else finds it. Not in constraints.txt: torch for CUDA needs another.
TRITON := 3.5.1
# Of the library's tests those that see most in a minute.
FAST := tests/contracts/test_formulas.py tests/contracts/test_compressor_properties.py tests/contracts/test_residuals.py tests/habits/test_habits.py tests/habits/test_refused.py

# What a shell sets for other projects changes nothing of what is installed, run or tested here. An index of packages, a
# proxy or a cache stay in force.
unexport CDPATH SNAKEMAKE_PROFILE SNAKEMAKE_CONDA_PREFIX SNAKEMAKE_APPTAINER_PREFIX SNAKEMAKE_OUTPUT_CACHE PYTHONPATH PYTHONHOME PYTHONOPTIMIZE PYTEST_ADDOPTS PYTEST_PLUGINS
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT PIP_REQUIREMENT PIP_NO_DEPS PIP_DRY_RUN

.PHONY: run resume test test-fast test-torch fuzz check micro gpu bundle images test-browser test-images test-slurm test-slurm-full lint unit horovod audit-tools locks audit docs format clean distclean
.DEFAULT_GOAL := help

help:
	@sed -n '/^PYTHON/q; s/^# //p' Makefile

.venv/installed: pyproject.toml benchmarks/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@echo "Setting up .venv (about two minutes on a fast connection) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt "$$(sed -n '/^torch==/p' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable . --editable ./benchmarks
	@touch $@

# What only tests need.
.venv/tests: .venv/installed
	@echo "Adding what tests need to .venv (a minute on a fast connection) ..."
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps --no-compile --upgrade --target .venv/optimizers bitsandbytes prodigyopt pytorch_optimizer schedulefree torchao
	$(BIN)/pip install --quiet --no-deps --no-compile --upgrade --target .venv/triton "triton==$(TRITON)" || echo "Tests of kernels in Triton will be skipped." >&2
	@touch $@

# !!str: without it snakemake reads 007 or 1e3 as numbers, and the run lies elsewhere.
run: .venv/installed
	@test -f "$(CONFIG)" || { echo "error: CONFIG: '$(CONFIG)' is not a file; there are: $(wildcard benchmarks/config/*.yaml); another name for a run: make run RUN=name CONFIG=file" >&2; exit 2; }
	@$(BIN)/python -m benchmarks cells --config "$(CONFIG)" $(if $(PART),--part "$(PART)") > /dev/null
	@$(BIN)/snakemake --cores all --configfile "$(CONFIG)" --config run="!!str $(RUN)" $(if $(PART),part="!!str $(PART)") $(if $(filter-out none,$(RUNTIME)),runtime="$(RUNTIME)" image="$(IMAGE)") --keep-going --rerun-incomplete --nolock --quiet rules progress host
	@$(BIN)/python -m benchmarks report --run "results/runs/$(RUN)" --show

# OPTIONS: more for snakemake; of make gpu and make micro, more for the command.
resume: .venv/installed
	@$(BIN)/python -m benchmarks resume --run "$(notdir $(RUN:/=))" $(if $(OPTIONS),-- $(OPTIONS))
	@$(BIN)/python -m benchmarks report --run "results/runs/$(notdir $(RUN:/=))" --show

test: .venv/tests horovod lint unit

# Not the same examples every time, as in make test; one that fails is tried first the next time.
fuzz: .venv/tests
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 FUZZ_EXAMPLES="$(EXAMPLES)" $(BIN)/python -m pytest tests/fuzz

# One thread: steps of small models wait more for two than they gain. On the CPU, beside a GPU too, as the reference.
check: .venv/installed
	@RESIREDUCE_DEVICE="$${RESIREDUCE_DEVICE:-cpu}" OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks check --measure benchmarks/config/memory.yaml --run results/runs/memory --reference results/reference/memory-cpu.json --junit results/runs/memory/junit.xml $(if $(ACCEPT),--accept "$(ACCEPT)")

micro: .venv/installed
	@$(BIN)/python -m benchmarks measure micro $(OPTIONS)

# With another interpreter, that has a torch for the GPU: python -m benchmarks measure gpu --everything
gpu: .venv/tests
	@$(BIN)/python -m benchmarks measure gpu --everything $(if $(DRYRUN),--dry-run) $(OPTIONS)

bundle: .venv/installed
	@$(BIN)/python -m benchmarks bundle --run "results/runs/$(RUN)"

# Each starts a Docker Engine if none runs, and stops it.
images: .venv/installed
	@$(MAKE) --no-print-directory run RUN=images-docker CONFIG=benchmarks/config/images.yaml RUNTIME=docker
	@$(MAKE) --no-print-directory run RUN=images-apptainer CONFIG=benchmarks/config/images.yaml RUNTIME=apptainer

test-images: .venv/tests
	$(BIN)/python -m benchmarks image engine -- $(BIN)/python -m pytest --timeout 900 tests/images

# A browser from Debian's packages, where none is installed, kept in the user's cache: 110 MB.
test-browser: .venv/tests
	FETCH_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 600 tests/browser

test-slurm: .venv/tests horovod
	$(BIN)/python -m pytest --timeout 900 tests/slurm -m "not full"

test-slurm-full: .venv/tests horovod
	$(BIN)/python -m pytest --timeout 3600 tests/slurm

lint: .venv/tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile benchmarks/workflow
	$(BIN)/mypy --num-workers auto

horovod: .venv/horovod

# Without a C++ compiler the rest is tested all the same; the tests of Horovod say that they were left out.
.venv/horovod: .venv/installed containers/build_horovod.sh containers/horovod.lock containers/build-tools.lock
	@bash containers/build_horovod.sh $(BIN)/python && touch $@ || { [ $$? = 3 ] && echo "Horovod's tests will be skipped." >&2; }

# A process for each core, and one thread in each. A test that hangs fails, and says where: the longest takes a minute.
# On the CPU, beside a GPU too: make gpu tests the library there.
unit test-fast: .venv/tests
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 600 --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(if $(K),-k "$(K)") $(if $(filter test-fast,$@),$(FAST))

# The interpreter is $(PYTHON). transformers imports torchao where it finds it, and torchao 0.16 and newer need torch 2.10.
test-torch:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/pip install --quiet "torch==$(TORCH)" --editable ".[test]" --editable ./benchmarks
	.venv-torch/bin/pip install --quiet --no-deps --no-compile --upgrade --target .venv-torch/optimizers bitsandbytes prodigyopt pytorch_optimizer schedulefree "torchao$(if $(filter 2.9.%,$(TORCH)),<0.16)"
	@bash containers/build_horovod.sh .venv-torch/bin/python || { [ $$? = 3 ] && echo "Horovod's tests will be skipped." >&2; }
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 .venv-torch/bin/python -m pytest --timeout 900 --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder tests/library tests/contracts tests/habits tests/fuzz tests/ranks

# Tools of their own, apart from the suite's environment.
.venv-audit/installed: containers/audit-tools.lock
	$(PYTHON) -m venv --clear .venv-audit
	.venv-audit/bin/pip install --quiet --no-deps --require-hashes --requirement $<
	@touch $@

audit-tools: .venv-audit/installed

locks: .venv-audit/installed
	@.venv-audit/bin/python -m benchmarks.images.locks $(if $(UPGRADE),--upgrade)

audit: .venv-audit/installed
	@status=0; for lock in containers/*.lock containers/*/*.lock; do echo "$$lock:"; \
	sed -n 's/^\([a-z0-9._-]*==[^ +]*\).*/\1/p' $$lock > .venv-audit/pins; \
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement .venv-audit/pins || status=1; \
	done; exit $$status

docs: .venv/tests
	@$(BIN)/python docs/build_api.py docs/api

format: .venv/tests
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format . ; $(BIN)/snakefmt Snakefile benchmarks/workflow

# What has been measured may have taken days. It stays, and so do Snakemake's data about it and the pretrained weights in
# results/cache: without these, cells that have finished would be trained again.
clean:
	rm -rf .venv .venv-audit .venv-torch docs/api

distclean: clean
	rm -rf .snakemake results/runs results/bundles results/cache
