"""The command line."""

from typer.testing import CliRunner

from autopar.cli import app
from tests.provoked.programs._shared import Path

_MODEL = """
import jax, jax.numpy as jnp

def step(w, x):
    return jnp.tanh(x @ w).mean()

def task():
    return step, (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32))

def wrong():
    return 3
"""


def _autopar(command, model=_MODEL):
    Path("model.py").write_text(model)
    print(f"$ autopar {command}")
    print(CliRunner().invoke(app, command.split(), catch_exceptions=False).output)


def a_target_that_is_neither_a_function_nor_a_plan():
    _autopar("report model")


def a_saved_plan_where_a_function_is_wanted():
    Path("plan.json").write_text("{}")
    _autopar("source plan.json")


def a_target_whose_file_is_not_there():
    _autopar("report gone.py:task")


def a_target_whose_function_is_not_there():
    _autopar("report model.py:gone")


def a_function_that_returns_no_task():
    _autopar("report model.py:wrong")


def a_file_that_fails():
    _autopar("report model.py:task", "import jax\n\n1 / 0\n")


def a_mesh_on_the_command_line_that_is_none():
    _autopar("report model.py:task --mesh 8")


def a_mesh_on_the_command_line_that_names_an_axis_twice():
    _autopar("report model.py:task --mesh x=2,x=4")


def a_memory_limit_on_the_command_line_that_is_none():
    _autopar("report model.py:task --memory-limit much")


def an_output_that_is_a_directory():
    _autopar("report model.py:task --save .")


def an_output_in_a_directory_that_is_not_there():
    _autopar("report model.py:task --json gone/report.json")


def a_front_saved_where_there_is_no_directory():
    _autopar("front model.py:task --save gone")


def a_saved_plan_with_options_of_planning():
    _autopar("report plan.json --cluster 8xh100")


def a_layout_that_is_not_there():
    _autopar("report model.py:task --against model.py:gone")


def a_layout_that_is_no_constraints():
    _autopar("report model.py:task --against model.py:wrong")


def a_job_of_parameter_servers_that_is_not_there():
    _autopar("parameter-server model.py:gone")


def a_job_of_parameter_servers_that_is_none():
    _autopar("parameter-server model.py:wrong")


def a_cluster_on_the_command_line_in_other_case():
    _autopar("report model.py:task --cluster 8xH100")


def a_script_that_is_not_there():
    _autopar("launch gone.py")
