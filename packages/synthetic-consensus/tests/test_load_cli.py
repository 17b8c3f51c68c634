"""Readers with generated files of the published formats, saved models, the command line, claims at a small size."""

import contextlib
import gzip
import io
import json
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest

from papershelf import InputError, Run
from synthetic_consensus import (
    BridgingMF,
    SchemaError,
    load_community_notes,
    load_model,
    load_polis,
    load_ratings,
    load_triples,
    save_model,
    synthetic,
)
from synthetic_consensus.claims import PAPER
from synthetic_consensus.cli import app


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*words, cwd=None):
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        app([str(word) for word in words])
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


NEW = "noteId\traterParticipantId\tcreatedAtMillis\tversion\tagree\tdisagree\thelpful\tnotHelpful\thelpfulnessLevel\tratedOnTweetId\tratingSourceBucketed\n"
ROWS = [
    "1500000000000000001\tAAA\t100\t2\t0\t0\t0\t0\tHELPFUL\t9\tDEFAULT\n",
    "1500000000000000001\tBBB\t101\t2\t0\t0\t0\t0\tNOT_HELPFUL\t9\tPOPULATION_SAMPLED\n",
    "1500000000000000002\tAAA\t102\t2\t0\t0\t0\t0\tSOMEWHAT_HELPFUL\t9\tDEFAULT\n",
    "1500000000000000001\tAAA\t103\t2\t0\t0\t0\t0\tNOT_HELPFUL\t9\tDEFAULT\n",
    "1500000000000000003\tCCC\t104\t1\t0\t0\t1\t0\t\t9\t\n",
    "1500000000000000003\tBBB\t105\t1\t0\t0\t0\t1\t\t9\t\n",
    "1500000000000000003\tDDD\t106\t2\t0\t0\t0\t0\t\t9\t\n",
]


def expected(ratings):
    return {
        (str(ratings.rater_ids[u]), int(ratings.note_ids[n])): v
        for u, n, v in zip(ratings.rater, ratings.note, ratings.value, strict=True)
    }


TRUTH = {
    ("AAA", 1500000000000000001): 0.0,
    ("BBB", 1500000000000000001): 0.0,
    ("AAA", 1500000000000000002): 0.5,
    ("CCC", 1500000000000000003): 1.0,
    ("BBB", 1500000000000000003): 0.0,
}


def test_community_notes_in_several_files_gz_and_zip(tmp_path):
    (tmp_path / "ratings-00000.tsv").write_text(NEW + "".join(ROWS[:2]))
    with gzip.open(tmp_path / "ratings-00001.tsv.gz", "wt") as file:
        file.write(NEW + "".join(ROWS[2:4]))
    with zipfile.ZipFile(tmp_path / "ratings-00002.zip", "w") as archive:
        archive.writestr("ratings-00002.tsv", NEW + "".join(ROWS[4:]))
    (tmp_path / "notes-00000.tsv").write_text(
        "noteId\tnoteAuthorParticipantId\tcreatedAtMillis\ttweetId\tclassification\tsummary\n1500000000000000001\tZZZ\t1\t9\tNOT_MISLEADING\ttext\n"
    )
    (tmp_path / "noteStatusHistory-00000.tsv").write_text(
        "noteId\tcurrentStatus\n1500000000000000001\tNEEDS_MORE_RATINGS\n"
    )
    (tmp_path / "userEnrollment-00000.tsv").write_text("participantId\tenrollmentState\nAAA\tearnedIn\n")
    found = load_community_notes(tmp_path)
    assert expected(found.ratings) == TRUTH
    sampled = {
        (str(found.ratings.rater_ids[u]), int(s))
        for u, s in zip(found.ratings.rater, found.ratings.source, strict=True)
    }
    assert ("BBB", 1) in sampled
    assert ("AAA", 1) not in sampled
    assert list(found.notes["noteId"]) == [1500000000000000001]
    assert list(found.history["currentStatus"]) == ["NEEDS_MORE_RATINGS"]
    assert found.enrollment.shape == (1, 2)
    assert expected(load_ratings(str(tmp_path))) == TRUTH


def test_first_schema_without_levels_and_sources(tmp_path):
    (tmp_path / "ratings-00000.tsv").write_text(
        "noteId\traterParticipantId\tcreatedAtMillis\thelpful\tnotHelpful\n7\tA\t1\t1\t0\n7\tB\t2\t0\t1\n8\tA\t3\t0\t0\n"
    )
    assert expected(load_community_notes(tmp_path).ratings) == {("A", 7): 1.0, ("B", 7): 0.0}


def test_schema_errors_name_columns_and_file(tmp_path):
    (tmp_path / "ratings-00000.tsv").write_text("noteId\trater\tcreatedAtMillis\thelpful\n1\tA\t1\t1\n")
    with pytest.raises(
        SchemaError, match=r"ratings-00000.tsv: missing columns raterParticipantId; other columns there: rater"
    ):
        load_community_notes(tmp_path)
    (tmp_path / "ratings-00000.tsv").write_text(
        "noteId\traterParticipantId\tcreatedAtMillis\thelpful\n1.5e18\tA\t1\t1\n"
    )
    with pytest.raises(SchemaError, match="read ids as int64/str"):
        load_community_notes(tmp_path)
    with pytest.raises(InputError, match="no ratings"):
        load_community_notes(_empty(tmp_path))


def _empty(folder):
    made = folder / "empty"
    made.mkdir()
    return made


def test_polis_both_forms(tmp_path):
    (tmp_path / "votes.csv").write_text(
        "timestamp,datetime,comment-id,voter-id,vote\n2,x,0,7,-1\n1,x,0,7,1\n3,x,1,7,0\n4,x,0,8,1\n"
    )
    ratings = load_polis(tmp_path)
    found = {
        (int(ratings.rater_ids[u]), int(ratings.note_ids[n])): v
        for u, n, v in zip(ratings.rater, ratings.note, ratings.value, strict=True)
    }
    assert found == {(7, 0): 0.0, (7, 1): 0.5, (8, 0): 1.0}
    wide = tmp_path / "wide"
    wide.mkdir()
    (wide / "participants-votes.csv").write_text("participant,group-id,0,1\n7,0,-1,0\n8,1,1,\n")
    other = load_polis(wide)
    assert other.size == 3
    with pytest.raises(InputError, match="neither votes"):
        load_polis(_empty(tmp_path))


def test_triples_of_other_libraries(tmp_path):
    (tmp_path / "a.csv").write_text("rater,note,value\n1,2,0.5\n3,2,1\n")
    (tmp_path / "b.inter").write_text("user_id:token\titem_id:token\trating:float\n1\t2\t0.5\n3\t2\t1\n")
    for name in ("a.csv", "b.inter"):
        assert load_triples(tmp_path / name).value.tolist() == [0.5, 1.0]
    (tmp_path / "c.csv").write_text("rater,note\n1,2\n")
    with pytest.raises(SchemaError, match="missing columns value; it has rater, note"):
        load_triples(tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text("rater,note,value\n1,2.5,0.5\n")
    with pytest.raises(SchemaError, match="int64/str"):
        load_triples(tmp_path / "d.csv")


def test_models_are_kept_and_damaged_ones_refused(tmp_path):
    model = BridgingMF(random_state=0).fit(synthetic(100, 50, 2500, rng=1)[0].filter())
    save_model(model, tmp_path / "m.npz")
    again = load_model(tmp_path / "m.npz")
    np.testing.assert_array_equal(again.score_notes()[0], model.score_notes()[0])
    assert again.get_params() == model.get_params()
    content = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "m.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged"):
        load_model(tmp_path / "m.npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("cli")
    assert (
        command(
            "simulate", "--ratings", 30_000, "--raters", 900, "--notes", 400, "--preset", "sparse", cwd=made
        ).returncode
        == 0
    )
    done = command("fit", "--data", "synthetic-ratings.csv", "--starts", 1, cwd=made)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    return made


def test_status_explain_effect_and_cost(folder):
    counts = json.loads(command("status", "--json", "--out", "status.csv", cwd=folder).stdout)
    rows = (folder / "status.csv").read_text().splitlines()
    assert sum(counts.values()) == len(rows) - 1
    note = rows[5].split(",")[0]
    found = json.loads(command("explain", note, "--json", cwd=folder).stdout)
    assert found["status"] == rows[5].split(",")[1]
    one = json.loads(
        command("effect", note, "--f", 0.4, "--rating", 1, "--plot", "effect.png", "--json", cwd=folder).stdout
    )
    assert abs(one["change"]) > 0
    assert (folder / "effect.png").stat().st_size > 10_000
    assert "turns from lowering" in command("effect", note, cwd=folder).stdout
    priced = json.loads(command("cost", "--positions", "harsh", "--notes", 2, "--json", cwd=folder).stdout)
    assert all(row["cost"] > row["cost over 10 notes"] for row in priced)


def test_audit_writes_tables_and_pictures(folder):
    done = command("audit", "--positions", "harsh", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "threshold only" in done.stdout
    assert "all deployed rules" in done.stdout
    made = folder / "consensus-audit"
    for name in ("notes", "success", "mitigations", "raters"):
        assert (made / f"{name}.png").stat().st_size > 10_000
    lines = (made / "notes.csv").read_text().splitlines()
    assert lines[0] == "note,intercept,factor,ratings_needed"
    (folder / "where.csv").write_text("factor,intercept\n-0.5,-0.1\n0.5,-0.1\n9,0\n")
    custom = json.loads(command("audit", "--positions", "where.csv", "--json", cwd=folder).stdout)
    assert custom["extrapolated"] is True
    table = json.loads(command("mitigate", "--json", cwd=folder).stdout)
    assert table[0]["defence"] == "threshold only"


def test_two_stage_fit(folder):
    found = json.loads(
        command(
            "fit",
            "--data",
            "synthetic-ratings.csv",
            "--two-stage",
            "--starts",
            1,
            "--out",
            "two.npz",
            "--json",
            cwd=folder,
        ).stdout
    )
    assert found["unhelpful raters"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--data", "nothing"], "no data 'nothing'"),
        (["fit", "--data", "nothing.csv"], "no file 'nothing.csv'"),
        (["status", "--model", "no.npz"], "no checkpoint at no.npz"),
        (["status", "--rules", "none"], "got 'none'"),
        (["explain", "nobody"], "no rated note 'nobody'"),
        (["effect", "1", "--rating", "3"], "[0, 1], got 3"),
        (["audit", "--positions", "wild"], "got 'wild'"),
        (["audit", "--positions", "no.csv"], "no file 'no.csv'"),
        (["audit", "--positions", "synthetic-ratings.csv"], "columns factor and intercept"),
        (["simulate", "--preset", "odd"], "got 'odd'"),
        (["bench", "speed"], "got 'speed'"),
        (["reproduce", "C1", "--full"], "--data FOLDER"),
    ],
)
def test_bad_words_get_one_line_and_code_2(folder, words, message):
    done = command(*words, cwd=folder)
    text = done.stderr + done.stdout
    assert message in " ".join(text.split())
    if words[0] != "reproduce":
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    outcome = claim.measure(Run(seed=1, scale="tiny", out=tmp_path, options={}))
    values = outcome.values
    match claim.id:
        case "C1":
            assert 0 < values["shares"]["typical"] < values["shares"]["harsh"] < 1
            assert values["protected"] < values["shares"]["harsh"]
            assert all(figure.stat().st_size > 10_000 for figure in outcome.figures)
        case "C2":
            assert values["one_sided"] < values["two_sided"]
        case "C3":
            assert values["violations"] == 0
        case "C4":
            assert values["shares"]["all deployed rules"] < values["shares"]["threshold only"]
        case "C5":
            assert values["mean_k"] >= 1
        case _:
            assert values["max_error"] > 0
            assert values["loss"][0] > values["loss"][1]
