# make lab    open the course in JupyterLab        (make lab ARGS="--no-browser --port 8899")
# make test   run every test
# make browsers    every notebook and every control in JupyterLab and classic Notebook, cells out of order (minutes)
# make test-colab  the notebooks and their tests with Colab's versions, and a start as on Colab
# make notebooks   run the notebooks and store their outputs
# make bench   measure how fast and how frugal the helpers are (minutes; ARGS="--device cuda" on a GPU)
# make kernels   measure the memory and CPU seconds that a class needs (minutes), for docs/teaching.md
# make latency how fast the live figures answer in a real browser (half an hour)
# make steady  do the notebooks say the same in every one of 20 runs? (20 minutes)
# make html   the notebooks as pages, in site/    (make slides: as slides for a class, too; ARGS="--no-solutions")
# make student   a copy to hand out, without solutions, in student/    (make student ARGS="--no-hints")
# make proof  prove every claim of docs/proof.md anew (two hours; ARGS="hostile steady" for some)
# make home URL=https://github.com/you/course   tell the notebooks where the course lives

PYTHON ?= python3
FIRST = notebooks/01_why_self_attention.ipynb
ROOT_USER := $(if $(filter 0,$(shell id -u)),--allow-root)
BIN = .venv/bin
# What was installed went with the environment:
$(shell test -x $(BIN)/python || rm -f .venv/installed .venv/installed-for-tests)
COLAB = .venv-colab/bin
$(shell test -x $(COLAB)/python || rm -f .venv-colab/installed)
# Not with Colab's versions: browsers are driven from .venv, and what the doctor says depends on PyTorch alone.
NOT_ON_COLAB = $(addprefix --ignore=tests/,test_access.py test_browser.py test_colab.py test_every_notebook.py test_export.py test_student.py) --ignore-glob='*/test_doctor*'

.PHONY: lab test lint browsers test-colab notebooks html slides student bench latency kernels steady proof home
.DELETE_ON_ERROR:

lab: .venv/installed
	$(BIN)/python -m jupyterlab $(ROOT_USER) --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/$(FIRST) $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

browsers: .venv/installed-for-tests .venv-colab/installed
	CI=true $(BIN)/python -m pytest -m "browsers or slow" tests/test_every_notebook.py tests/test_out_of_order.py tests/test_access.py $(ARGS)

test-colab: .venv-colab/installed .venv/installed-for-tests
	$(COLAB)/python -m pytest -m "not pinned and not browsers and not slow" $(NOT_ON_COLAB) $(ARGS)
	CI=true $(BIN)/python -m pytest -m browsers tests/test_colab.py $(ARGS)

lint: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check

notebooks: .venv/installed
	$(BIN)/python .ci/notebooks.py run $(ARGS)

bench: .venv/installed
	$(BIN)/python -m benchmarks $(ARGS)

kernels: .venv/installed
	$(BIN)/python -m benchmarks.kernels

latency: .venv/installed-for-tests
	$(BIN)/python -m benchmarks.latency $(ARGS)

steady: .venv/installed
	$(BIN)/python .ci/steady.py $(ARGS)

proof: .venv/installed-for-tests
	$(BIN)/python .ci/proof.py $(ARGS)

home: .venv/installed
	$(BIN)/python .ci/notebooks.py home $(URL)

html slides: .venv/installed-for-tests
	$(BIN)/python .ci/export.py $@ $(ARGS)

slides: html

student: .venv/installed
	$(BIN)/python .ci/student.py $(ARGS)

.venv/installed: requirements.txt
.venv/installed-for-tests: requirements.txt tests/requirements.txt
.venv/installed .venv/installed-for-tests: | .venv/bin/python
	@echo "Installing $(lastword $^) into .venv (the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(lastword $^) || { echo "" >&2; \
	  echo "Could not install $(lastword $^). If the lines above speak of connections or retries, this machine is offline: connect it and run make again. Otherwise delete .venv and try once more." >&2; exit 1; }
	@mkdir -p .venv/etc/jupyter/labconfig
	@echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' \
	  > .venv/etc/jupyter/labconfig/page_config.json  # no question about news over the first lesson
	@touch $@

.venv-colab/installed: tests/colab-requirements.txt tests/colab-constraints.txt | .venv/bin/python
	@echo "Installing $< into .venv-colab (the first time takes minutes)"
	@test -x $(COLAB)/python || $(BIN)/python -m venv .venv-colab
	@$(COLAB)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv/bin/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no $(PYTHON) here: install Python 3.11 or newer, or name one with make PYTHON=/path/to/python3." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The course needs Python 3.11 or newer, but $(PYTHON) is $$("$(PYTHON)" --version 2>&1 | cut -d' ' -f2): name a newer one with make PYTHON=python3.12, say." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments: on Debian and Ubuntu run  sudo apt install python3-venv  first." >&2; exit 1; }
	@"$(PYTHON)" -m venv .venv
