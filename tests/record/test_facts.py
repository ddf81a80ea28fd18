"""What ran: asked of real repositories and a real process."""

import os
import platform
import subprocess
import sys

import torch

from stoker.record._facts import facts_of_this_process, git_commit


def test_versions_command_and_time():
    facts = facts_of_this_process()
    assert torch.__version__.startswith(facts["versions"]["torch"])
    assert facts["versions"]["python"] == sys.version.split()[0]
    assert facts["command"] == sys.orig_argv and facts["started"] > 1.7e9
    assert facts["host"] == platform.node() and facts["folder"] == os.getcwd()


def test_the_commit_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None

    def git(*command):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(["git", *who, *command], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert git_commit() is None
    (tmp_path / "file").write_text("a")
    git("add", ".")
    git("commit", "-qm", "first")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD")
    assert git_commit() == commit
    (tmp_path / "file").write_text("b")
    assert git_commit() == f"{commit}-dirty"


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() is None
