"""A report as JUnit XML: a test case for each finding, so that a CI shows gates as it shows tests."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from reprokit import _files
from reprokit.errors import BadInput
from reprokit.smoke.gate import Finding, Verdict
from reprokit.smoke.smoke import PROVES, Report

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 cannot hold these at all


def xml(report: Report, entrypoint: str) -> bytes:
    """The document."""
    counts = {"failures": report.count(Verdict.FAILED), "skipped": report.count(Verdict.NOT_APPLICABLE)}
    attributes = {"tests": len(report.findings), "errors": 0, **counts}
    numbers = {name: str(value) for name, value in attributes.items()}
    suites = ET.Element("testsuites", numbers)
    suite = ET.SubElement(suites, "testsuite", {"name": _clean(f"reprokit smoke {entrypoint}"), **numbers})
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", {"name": "proves", "value": PROVES})
    for why, gates in report.not_asked.items():
        told = _clean(f"{', '.join(gates)}: {why}")
        ET.SubElement(properties, "property", {"name": "not asked", "value": told})
    paths = dict(report.incidents)
    for finding in report.findings:
        case = ET.SubElement(suite, "testcase", {"classname": finding.gate, "name": _clean(finding.check)})
        if finding.verdict is Verdict.FAILED:
            incident = f"\nincident: {paths[finding.gate]}" if finding.gate in paths else ""
            failure = ET.SubElement(case, "failure", {"message": _clean(finding.observed), "type": finding.gate})
            failure.text = _clean(f"{_sentence(finding)}\nnext: {finding.advice}{incident}")
        elif finding.verdict is Verdict.NOT_APPLICABLE:
            ET.SubElement(case, "skipped", {"message": _clean(finding.observed)})
        else:
            ET.SubElement(case, "system-out").text = _clean(_sentence(finding))
    ET.indent(suites)
    return bytes(ET.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def write(report: Report, entrypoint: str, path: Path) -> None:
    """Whole, or as it was; a device or a pipe is written into. Raises BadInput where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _files.write_out(path, xml(report, entrypoint))
    except OSError as error:
        raise BadInput(f"--junit {path}: cannot be written ({error.strerror}); choose another file") from error


def _sentence(finding: Finding) -> str:
    return f"expected {finding.expected}; observed {finding.observed}"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
