"""Tests of the report in a real browser: layout on screens and paper, data in plots, and no network requests."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from measured_samples import b200, marked, save, single_stream, tp4dp2, tp8
from waits import TIMEOUT

from orchestrator.bench.result import BenchResult, FailureCount, IssueKind
from orchestrator.report.write import find_results, make_report, write_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE, TABLET, DESKTOP = 375, 768, 1280

# Shows the page in three frames and measures the layout of each.
MEASURE = """<!doctype html><body>
<iframe width="375" height="800" srcdoc="PAGE"></iframe><iframe width="768" height="800" srcdoc="PAGE"></iframe>
<iframe width="1280" height="800" srcdoc="PAGE"></iframe>
<script>
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument;
    const plots = [...page.querySelectorAll("svg.plot")].map(plot => {
      const box = plot.getBoundingClientRect();
      const marks = [...plot.querySelectorAll(".series .mark, rect.mark")].map(mark => mark.getBoundingClientRect());
      const labels = [...plot.querySelectorAll("text")].map(text => text.getBoundingClientRect());
      const inside = r => r.left >= box.left - 8 && r.right <= box.right + 8 && r.top >= box.top - 8;
      return {id: plot.id, marks: marks.filter(mark => mark.width > 0).length,
              stray: marks.filter(mark => !inside(mark)).length,
              cut: labels.filter(label => label.right > frame.clientWidth).length};
    });
    const spot = page.querySelector(".spot");
    const tip = spot && frame.contentWindow.getComputedStyle(spot.querySelector(".tip"));
    const tips = spot && [tip.display, (spot.focus(), tip.display)];
    return {width: frame.clientWidth, tips, needed: page.documentElement.scrollWidth, plots,
            background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
            warnings: page.querySelectorAll(".warning").length, text: page.body.innerText.length};
  });
  document.body.innerHTML = "<pre id=frames></pre>";
  document.getElementById("frames").textContent = JSON.stringify(frames);
});
</script></body>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no headless Chromium on this machine: apt-get install chromium")
    return program


def browse(chromium: str, profile: Path, *arguments: str) -> str:
    argv = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
        *("--virtual-time-budget=3000", *arguments),
    ]
    return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout


def page_of(directory: Path, *results: BenchResult) -> Path:
    for index, result in enumerate(results):
        save(result, directory / str(index))
    return write_report(make_report(find_results([directory]), published="wafer-glm52", prices=()), directory)[0]


def measure_layout(chromium: str, page: Path, *arguments: str) -> list[dict[str, object]]:
    frame = page.with_name("measure.html")
    frame.write_text(MEASURE.replace("PAGE", html.escape(page.read_text())))
    dom = browse(chromium, page.parent / "profile", "--dump-dom", *arguments, frame.as_uri())
    match = re.search(r'<pre id="frames">(.*?)</pre>', dom, re.DOTALL)
    assert match is not None
    frames = json.loads(html.unescape(match[1]))
    assert [frame["width"] for frame in frames] == [PHONE, TABLET, DESKTOP]
    return list(frames)


def test_report_fits_phone_and_plots_contain_data(chromium: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, tp4dp2(), tp8(), single_stream(), b200())
    for frame in measure_layout(chromium, page):
        assert frame["needed"] == frame["width"], "the page is wider than the window"
        plots = frame["plots"]
        assert isinstance(plots, list)
        marks = {plot["id"]: plot["marks"] for plot in plots}
        assert marks == {"frontier": 13, "ttft-p95": 19, "tpot": 13, "throughput": 19, "energy": 6}
        assert [plot["stray"] + plot["cut"] for plot in plots] == [0] * 5
        assert frame["warnings"] == 0
        assert frame["tips"] == ["none", "block"], "keyboard focus does not show the exact values of a point"
        assert isinstance(frame["text"], int)
        assert frame["text"] > 5000


def test_report_with_long_names_fits(chromium: str, tmp_path: Path) -> None:
    failed = FailureCount(kind="stream-error", count=4, example="x" * 300)
    for index in range(2):
        result = tp4dp2()
        points = tuple(replace(point, failures=(failed,)) for point in result.points)
        plan = {"flags": [{"name": "a-setting-of-quite-some-length", "values": [f"/a/long/path/{index}" * 6]}]}
        provenance = replace(result.run.provenance, plan=plan, plan_digest=str(index))
        changed = replace(result, run=replace(result.run, provenance=provenance), points=points)
        save(changed, tmp_path / f"a-directory-with-a-rather-long-name-{index}")
    results = find_results([tmp_path])
    report = make_report(results, published="none", prices=())
    for frame in measure_layout(chromium, write_report(report, tmp_path)[0]):
        assert frame["needed"] == frame["width"], "the page is wider than the window"
        plots = frame["plots"]
        assert isinstance(plots, list)
        assert {"frontier", "ttft-p95", "throughput"} <= {plot["id"] for plot in plots}
        assert [plot["stray"] + plot["cut"] for plot in plots] == [0] * len(plots)


def test_comparability_issue_is_visible(chromium: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, marked(tp4dp2(), IssueKind.SIMULATED_ACCEPTANCE, IssueKind.KERNEL_MISS))
    assert [frame["warnings"] for frame in measure_layout(chromium, page)] == [1, 1, 1]


def test_dark_mode_has_dark_background(chromium: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, tp4dp2())
    light, dark = (
        measure_layout(chromium, page, *arguments)[0]["background"]
        for arguments in ((), ("--blink-settings=preferredColorScheme=0",))
    )
    assert light == "rgb(253, 253, 251)"
    assert dark == "rgb(22, 22, 21)"


def requests_of(chromium: str, page: Path) -> list[str]:
    """Return the URLs that a page requests, from the browser's log, in which its own requests have no origin."""
    log = page.parent / "net.json"
    browse(chromium, page.parent / "profile", f"--log-net-log={log}", "--dump-dom", page.as_uri())
    events = (event.get("params", {}) for event in json.loads(log.read_text())["events"])
    return [event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"]


def test_report_makes_no_network_requests(chromium: str, tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text('<img src="http://somewhere.invalid/pixel.png">')
    assert requests_of(chromium, control) == ["http://somewhere.invalid/pixel.png"]  # the log contains requests
    assert requests_of(chromium, page_of(tmp_path, tp4dp2(), b200())) == []


def test_report_prints_on_a4(chromium: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, tp4dp2(), tp8())
    paper = tmp_path / "report.pdf"
    browse(chromium, tmp_path / "profile", f"--print-to-pdf={paper}", "--no-pdf-header-footer", page.as_uri())
    document = paper.read_bytes()
    assert document.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type /Page\b(?!s)", document))
    assert 3 <= pages <= 11
    width, height = (float(side) for side in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", document)[0])
    assert (round(width), round(height)) == (595, 842)
