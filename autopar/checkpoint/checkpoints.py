"""Checkpoints: a directory of them, written behind the steps of a job and read by whatever job goes on."""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autopar._compat import untyped_jax
from autopar.api.placing import opened_tree
from autopar.api.plan import Plan
from autopar.api.plan_file import autopar_version, packed_fields
from autopar.checkpoint.library import orbax
from autopar.checkpoint.manifest import MANIFEST, damage_in, write_manifest
from autopar.checkpoint.preemption import Preemption
from autopar.checkpoint.stored import difference, leaves_of, restored, stored, wanted
from autopar.emit.several import gathered, this_process
from autopar.errors import CheckpointError, DamagedCheckpointWarning, InvalidOption, users_level

_FORMAT = 1
_JSON_FILE = "metadata"  # what orbax calls the file of a JSON item


@dataclass(frozen=True, eq=False)
class Restored:
    """What a checkpoint held.

    Attributes:
      step: how many steps were done.
      state: the arrays, where they were wanted.
      data: what was passed as `data`; of a loader what its `get_state` gave.
      plan: the plan that was passed, loaded; None if none was.
    """

    step: int
    state: Any
    data: Any
    plan: Plan | None


class Checkpoints:
    """The checkpoints in a directory: `save` after every step, `restore` before the first.

    All processes of a job make one, on a directory that all of them see, and call its methods alike. A checkpoint is
    there once all of it is: jobs that are killed lose what was not, never what was. As a context it is closed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        every: int = 100,
        keep: int = 3,
        at_sigterm: bool = True,
        read_only: bool = False,
    ) -> None:
        """Opens `directory`, which is made if it is missing.

        Args:
          directory: where they are.
          every: steps from one to the next.
          keep: how many of the last ones are kept.
          at_sigterm: whether SIGTERM makes the next step be saved and `preempted` true; else nothing is done about it.
          read_only: nothing is written, moved or tidied up: for readers beside the job that writes.

        Raises:
          InvalidOption: `every` or `keep` is below 1.
          MissingExtra: orbax is not installed.
          CheckpointError: the directory cannot be made, or is a file.
        """
        if every < 1 or keep < 1:
            raise InvalidOption(
                f"every is {every} and keep is {keep}: save every 1 or more steps, and keep 1 or more"
            )

        self.directory = Path(directory).absolute()
        if self.directory.exists() and not self.directory.is_dir():
            raise CheckpointError(f"{self.directory} is a file: name a directory for checkpoints")
        self.every = every
        self.preempted = False
        self._read_only = read_only
        self._saving: int | None = None
        self._good: int | None = None
        self._manager = self._opened(keep)
        self._preemption = Preemption() if at_sigterm and not read_only else None

    # Writing ----------------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: Any = None,
        plan: Plan | None = None,
        force: bool = False,
    ) -> bool:
        """Saves if it is time: every so many steps, at SIGTERM, or if `force`. To be called after every step.

        The state is copied off the devices, then written in the background: a step that its arrays are donated to may
        follow at once. At SIGTERM it returns when all is written, and `preempted` is true: then the job is to end.

        Args:
          step: how many steps were done.
          state: the arrays and numbers to go on from.
          data: where in its data the job is: a loader with `get_state`, or what JSON can hold; alike in all processes.
          plan: the plan of the step.
          force: at whatever step.

        Returns:
          Whether this step is saved.

        Raises:
          CheckpointError: this one cannot be saved, or the one before could not be: the disk is full, say. Those that
            are there stay.
          InvalidOption: the directory was opened to be read only.
        """
        if self._read_only:
            raise InvalidOption(f"{self.directory} was opened read_only: open it without, to save")

        stopping = self._preemption is not None and self._preemption.reached(step)
        self.preempted = self.preempted or stopping
        if not (force or stopping or step % self.every == 0):
            return False

        if step != self._latest():
            self._start(step, state, data, plan)
        if stopping:
            self.wait()
        return True

    def wait(self) -> None:
        """Returns when what was saved last is written.

        Raises:
          CheckpointError: if it could not be.
        """
        with self._failing(self._saving):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, then gives SIGTERM back.

        Raises:
          CheckpointError: what was saved last could not be written.
        """
        if self._preemption is not None:
            self._preemption.close()
        with self._failing(self._saving):
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Closes; where an error is on its way already, a checkpoint that failed is a note of it."""
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _opened(self, keep: int) -> Any:
        """Orbax's manager of the directory."""
        ocp = orbax()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            read_only=self._read_only,
            create=not self._read_only,
            cleanup_tmp_directories=not self._read_only,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        handlers = {
            "state": ocp.StandardCheckpointHandler(),
            "job": ocp.JsonCheckpointHandler(),
            "plan": ocp.JsonCheckpointHandler(),
        }

        with self._failing(None):
            return ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

    def _start(self, step: int, state: Any, data: Any, plan: Plan | None) -> None:
        latest = self._latest()
        if latest is not None and latest > step:
            raise CheckpointError(
                f"step {step} cannot be saved in {self.directory}, where step {latest} is already: go on from that, "
                f"move it away, or name another directory."
            )

        args = orbax().args
        with opened_tree(state) as (arrays, _):
            job = {
                "format": _FORMAT,
                "autopar_version": autopar_version(),
                "step": step,
                "leaves": leaves_of(arrays),
                "data": _position(data),
            }
            items = {"state": args.StandardSave(stored(arrays)), "job": args.JsonSave(job)}
            if plan is not None:  # one process writes it: the first, whose plan all run
                fields = packed_fields(plan.file) if this_process() == 0 else {}
                items["plan"] = args.JsonSave(fields)

            with self._failing(self._saving):
                self._manager.wait_until_finished()
            self._saving = step
            with self._failing(step):
                self._manager.save(step, args=args.Composite(**items), force=True)

    def _seal(self) -> None:
        """Adds the manifest to what is written, right before it takes the name that makes it a checkpoint."""
        (unnamed,) = self._unnamed(self._saving)
        write_manifest(unnamed)

    def _unnamed(self, step: int | None) -> list[Path]:
        """Where orbax writes a checkpoint before it takes its name."""
        return list(self.directory.glob(f"{step}.orbax-checkpoint-tmp*"))

    @contextmanager
    def _failing(self, step: int | None) -> Generator[None]:
        """Whatever fails within is said to have made the checkpoint of `step` fail."""
        try:
            yield
        except Exception as error:
            if step is None:
                raise CheckpointError(
                    f"{self.directory} cannot be used for checkpoints: {_reason(error)}. Name another directory."
                ) from error
            self._saving = None
            if this_process() == 0:
                for unfinished in self._unnamed(step):
                    shutil.rmtree(unfinished, ignore_errors=True)
            self._manager.reload()
            latest = self._latest()
            kept = "None was there before" if latest is None else f"That of step {latest} is there"
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {self.directory}: {_reason(error)}. {kept}. Free "
                f"some space, or name another directory."
            ) from error

    # Reading ----------------------------------------------------------------------------------------------------------

    def restore(self, target: Any, argument: int | str = 0) -> Restored | None:
        """The last checkpoint, with its state where `target` says; None if there is none.

        One that is damaged is set aside, with a DamagedCheckpointWarning, and the one before is taken.

        Args:
          target: a plan that takes the state, or a tree like the state: of arrays, or of jax.ShapeDtypeStructs with
            shardings. Arrays of the host become such. Of any mesh and any number of processes.
          argument: of a plan the argument that the state is, its position or name.

        Raises:
          CheckpointError: the state is another one; names the leaves that differ. Or all checkpoints are damaged.
        """
        step = self.latest_step()
        if step is None:
            return None

        like = target.abstract(argument) if isinstance(target, Plan) else target
        job = self._json(step, "job")
        if job["format"] != _FORMAT:
            raise CheckpointError(
                f"the checkpoint of step {step} in {self.directory} is of format {job['format']!r}, this version of "
                f"autopar reads {_FORMAT}: restore it by the version that wrote it, {job['autopar_version']!r}."
            )
        there = {name: (tuple(shape), dtype) for name, (shape, dtype) in job["leaves"].items()}
        with opened_tree(like) as (arrays, put_back):
            differing = difference(there, leaves_of(arrays))
            if differing:
                raise CheckpointError(
                    f"the checkpoint of step {step} in {self.directory} is of another state: {differing}. Restore what "
                    f"was saved, or name another directory."
                )
            args = orbax().args
            items = args.Composite(state=args.StandardRestore(wanted(arrays)))
            found = self._manager.restore(step, args=items)
            state = put_back(restored(arrays, found.state))

        return Restored(step, state, job["data"], self.plan())

    def plan(self) -> Plan | None:
        """The plan of the last checkpoint, loaded; None if there is none.

        Raises:
          CheckpointError: all checkpoints are damaged.
        """
        step = self.latest_step()
        path = self.directory / str(step) / "plan" / _JSON_FILE
        return Plan.load(path) if step is not None and path.exists() else None

    def latest_step(self) -> int | None:
        """The step of the last checkpoint that is not damaged; None if there is no checkpoint.

        The files are looked into once, by each process at a part of them.

        Raises:
          CheckpointError: all checkpoints are damaged, or others than autopar's are there.
        """
        self.wait()
        latest = self._latest()
        if latest is None or latest == self._good or latest == self._saving:
            return latest

        damages: list[str] = []
        for step in sorted(self._agreed_steps(), reverse=True):
            self._check_own(step)
            damage = self._agreed_damage(step)
            if not damage:
                self._good = step
                return step
            damages.append(f"step {step}: {damage}")
            self._set_aside(step, damage)

        raise CheckpointError(
            f"every checkpoint in {self.directory} is damaged ({'; '.join(damages)}). Begin anew in another directory."
        )

    def _check_own(self, step: int) -> None:
        """Whether autopar wrote a checkpoint: what it did not, it does not set aside as damaged."""
        path = self.directory / str(step)
        if not (path / "job").exists() and not (path / MANIFEST).exists():
            raise CheckpointError(
                f"{path} is no checkpoint of autopar: it has neither 'job' nor {MANIFEST}. Name another directory."
            )

    def _set_aside(self, step: int, damage: str) -> None:
        """Says that a checkpoint is damaged, and gives it a name that is none of a checkpoint."""
        path = self.directory / str(step)
        aside = path.with_name(f"{step}.damaged")
        kept = "it is left out"
        if not self._read_only:
            kept = f"it is {aside.name} now"
            if this_process() == 0:
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
            self._agree(b"")  # all see the new name, then
            self._manager.reload()

        warnings.warn(
            f"the checkpoint of step {step} in {self.directory} is damaged: {damage}; {kept}, and the one before is "
            f"used",
            DamagedCheckpointWarning,
            stacklevel=users_level(),
        )

    def _agreed_steps(self) -> list[int]:
        """The steps that the first process sees."""
        return json.loads(self._agree(json.dumps(self._manager.all_steps()).encode())[0])

    def _agreed_damage(self, step: int) -> str:
        """What any process found wrong with its part of a checkpoint."""
        processes = untyped_jax.process_count()
        own = damage_in(self.directory / str(step), this_process(), processes)
        return next((found.decode() for found in self._agree(own.encode()) if found), "")

    def _agree(self, own: bytes) -> tuple[bytes, ...]:
        """What each process says."""
        if untyped_jax.process_count() == 1:
            return (own,)
        return gathered(own, untyped_jax.devices())

    def _json(self, step: int, item: str) -> Any:
        path = self.directory / str(step) / item / _JSON_FILE
        return json.loads(path.read_text(encoding="utf-8"))

    def _latest(self) -> int | None:
        """The last step that was saved, or is being saved."""
        return self._manager.latest_step()


def _position(data: Any) -> Any:
    """Where in its data the job is, as JSON.

    Raises:
      CheckpointError: it is not.
    """
    get_state: Callable[[], Any] | None = getattr(data, "get_state", None)
    position = data if get_state is None else get_state()
    try:
        return json.loads(json.dumps(position))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"data is {position!r}, which JSON cannot hold ({error}): pass a loader with get_state(), or a small dict"
        ) from error


def _reason(error: BaseException | None) -> str:
    """The first line of what went wrong; of a full disk that."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__

    texts = [str(one) for one in chain]
    is_full = any(
        isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT) for one in chain
    ) or any("No space left" in text or "RESOURCE_EXHAUSTED" in text for text in texts)
    first = texts[0].strip().splitlines() or [type(chain[0]).__name__]
    return "the disk is full" if is_full else first[0]
