"""Claims are measured one by one; errors, interrupts and resumes lose nothing; reports stand alone."""

import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest

from papershelf import Claim, InputError, Paper, Run
from papershelf.cli import run_claims, split_options
from papershelf.report import render, write_report
from papershelf.reproduce import PRINTED, convert_options, load_results, plain, reproduce


def interrupted(run):
    raise KeyboardInterrupt


def everything(paper):
    return [(paper, claim) for claim in paper.claims]


def test_each_claim_gets_its_status_and_errors_stop_nobody(paper, tmp_path):
    seen = []
    results = reproduce(everything(paper), tmp_path, finished=seen.append)
    statuses = ["held", "did not hold", "error", "held", "not measured", "not measured"]
    assert [result.status for result in results] == statuses
    assert seen == results
    assert results[2].error == "RuntimeError: no luck"
    assert "second line" in (tmp_path / "made-up/C3/error.txt").read_text()
    assert load_results(tmp_path)[0].values == results[0].values
    assert (tmp_path / results[3].figures[0]).stat().st_size > 1000


def test_longer_scales_measure_more(paper, tmp_path):
    results = reproduce(everything(paper), tmp_path, scale="full")
    assert [r.status for r in results[4:]] == ["held", "held"]
    assert {r.scale for r in results} == {"full"}


def test_the_same_seed_gives_the_same_values_and_another_seed_others(paper, tmp_path):
    one, two, other = (
        reproduce([(paper, paper.claims[0])], tmp_path / str(i), seed=s)[0] for i, s in enumerate((3, 3, 4))
    )
    assert one.values == two.values != other.values


def test_ctrl_c_keeps_the_finished_claims_and_resume_goes_on(paper, make_claim, tmp_path):
    selection = [(paper, paper.claims[0]), (paper, make_claim("C9", interrupted)), (paper, paper.claims[1])]
    with pytest.raises(KeyboardInterrupt):
        reproduce(selection, tmp_path)
    kept = load_results(tmp_path)
    assert [r.id for r in kept] == ["C1"]
    again = reproduce(everything(paper), tmp_path, resume=True)
    assert again[0].seconds == kept[0].seconds
    assert again[1].status == "did not hold"
    assert reproduce(everything(paper), tmp_path, resume=True, seed=5)[0].values != kept[0].values


def test_a_real_ctrl_c_ends_with_130_and_a_valid_file(tmp_path):
    program = (
        "import signal, sys, time\nfrom pathlib import Path\nsys.argv[0] = 'made'\n"
        # A shell that starts this in the background has it ignore Ctrl-C; a person at a terminal has not.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from papershelf import Paper, Claim, Outcome\nfrom papershelf.cli import app\n"
        "def quick(run): return Outcome(holds=True, measured='1')\n"
        "def slow(run): print('slow', flush=True); time.sleep(60)\n"
        "c = lambda i, m: Claim(id=i, statement='s', paper='p', criterion='c', measure=m)\n"
        "app(Paper(slug='made', package='papershelf', distribution='papershelf', title='t', authors=('a',), year=2026,\n"
        " venue='v', summary='s', claims=(c('C1', quick), c('C2', slow)), methods=()))()\n"
    )
    command = [sys.executable, "-c", program, "reproduce", "--out", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while "slow" not in child.stdout.readline():
        pass
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert [r.id for r in load_results(tmp_path)] == ["C1"]


def run_all(paper, tmp_path, **changes):
    settings = {"options": {}, "seed": 0, "resume": False, "scale": "quick", "as_json": False, "strict": False}
    return run_claims(everything(paper), tmp_path, **{**settings, "dry_run": False, **changes})


def test_exit_codes(paper, tmp_path):
    good = Paper(**{**paper.__dict__, "claims": paper.claims[:2]})
    assert run_all(good, tmp_path) == 0
    assert run_all(good, tmp_path, strict=True) == 1
    assert run_all(paper, tmp_path) == 1


def test_json_lines_have_the_promised_fields(paper, tmp_path, capsys):
    run_all(paper, tmp_path, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [claim.id for claim in paper.claims]
    assert all(tuple(line) == PRINTED for line in lines)
    assert lines[1]["values"] == {"nan": None}
    assert [line["holds"] for line in lines] == [True, False, None, True, None, None]


def test_plain_lines_in_a_pipe_and_a_dry_run_with_recipes(paper, tmp_path, capsys):
    run_all(paper, tmp_path)
    out = capsys.readouterr().out
    assert "A note." in out
    assert "2 of 3 measured claims held" in out
    assert "full scale: made-up reproduce C6 --full" in out
    run_all(paper, tmp_path / "none", dry_run=True)
    assert "(needs 8 GPUs): made-up reproduce C6 --full" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_options_reach_the_claims_that_declare_them(paper):
    claim = paper.claim("c4")
    assert convert_options(claim, {"top": "7"}) == {"top": 7}
    with pytest.raises(InputError, match="--top of claim C4 expects int, got 'x'"):
        convert_options(claim, {"top": "x"})
    with pytest.raises(InputError, match="claim C1 has no option --top; it has none"):
        convert_options(paper.claim("C1"), {"top": "1"})
    assert split_options(["C1", "--a", "1", "--b=2"]) == (["C1"], {"a": "1", "b": "2"})
    with pytest.raises(InputError, match="expects a value"):
        split_options(["C1", "--a"])


def test_a_damaged_results_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no claims\.json"):
        load_results(tmp_path)
    (tmp_path / "claims.json").write_text("{")
    with pytest.raises(InputError, match="not a results file"):
        load_results(tmp_path)


def test_plain_values_are_json():
    value = {"a": np.float32(1.5), "b": np.array([1, 2]), "c": (float("inf"), None), 3: {1}}
    assert json.dumps(plain(value)) == '{"a": 1.5, "b": [1, 2], "c": [null, null], "3": [1]}'


def test_sizes_by_scale(tmp_path):
    at = {s: Run(out=tmp_path, scale=s).size(quick=1, full=3) for s in ("tiny", "quick", "long", "full")}
    assert at == {"tiny": 1, "quick": 1, "long": 1, "full": 3}


def test_claims_and_papers_are_checked_when_made(paper, make_claim):
    with pytest.raises(ValueError, match="capital letter"):
        make_claim("first", None)
    with pytest.raises(ValueError, match="needs a recipe"):
        make_claim("C1", None, scale="full")
    with pytest.raises(ValueError, match="names a claim twice"):
        Paper(**{**paper.__dict__, "claims": (paper.claims[0], paper.claims[0])})
    with pytest.raises(InputError, match="no claim 'C99'; it has C1, C2"):
        paper.claim("C99")
    assert isinstance(paper.claim("c1"), Claim)
    assert "author = {Ann Author and Bob Writer}" in paper.bibtex()


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.headings, self.images, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag in ("h1", "h2", "h3"):
            self.headings.append(int(tag[1]))
        if tag == "img":
            self.images.append(values)
        self.links += [values[a] for a in ("href", "src") if a in values]


def test_the_report_stands_alone_and_is_accessible(paper, tmp_path):
    reproduce(everything(paper), tmp_path)
    text = write_report(tmp_path).read_text()
    page = Page()
    page.feed(text)
    tags = [tag for tag, _ in page.tags]
    assert dict(page.tags[0][1])["lang"] == "en"
    assert tags.count("title") == tags.count("h1") == tags.count("main") == 1
    assert any(values.get("name") == "viewport" for tag, values in page.tags if tag == "meta")
    assert page.headings[0] == 1
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert page.images
    assert all(image["alt"] and image["src"].startswith("data:image/png;base64,") for image in page.images)
    assert all(values.get("scope") in ("col", "row") for tag, values in page.tags if tag == "th")
    assert tags.count("caption") == tags.count("table")
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert "http" not in text.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in text
    assert "statement &lt;C1&gt;" in text
    assert "did not hold" in text
    assert "made-up reproduce C6 --full" in text


def test_a_report_of_a_paper_that_is_not_installed_still_renders(paper, tmp_path):
    results = reproduce(everything(paper)[:1], tmp_path)
    assert "made-up" in render(results, tmp_path)


def test_importing_papershelf_imports_neither_torch_nor_transformers():
    program = (
        "import sys, papershelf, papershelf.cli; print({'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "set()\n"
