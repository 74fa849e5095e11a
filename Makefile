# make lab    open the course in JupyterLab        (make lab ARGS="--no-browser --port 8899")
# make test   run every test
# make browsers    every notebook and every control in JupyterLab and classic Notebook (minutes)
# make test-colab  the notebooks and their tests with Colab's versions, and a start as on Colab
# make notebooks   run the notebooks and store their outputs
# make bench   measure how fast and how frugal the helpers are (minutes; ARGS="--device cuda" on a GPU)

kernels: .venv/installed
	$(BIN)/python -m benchmarks.kernels
